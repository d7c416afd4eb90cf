"""What a browser sees at the address of a server: that it is one, and how it is asked.

Anybody who can reach the server can see it, without a token: it tells nothing of a run.
"""

from __future__ import annotations

from html import escape
from string import Template

from holdfast.probe.address import Address
from holdfast.probe.serve.reply import Page, Request
from holdfast.version import __version__

_PAGE = Template("""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Holdfast</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; max-width: 44rem; margin: 3rem auto; padding: 0 1rem }
  body { color: #222; background: #fff }
  pre { background: #f4f4f4; padding: .8rem 1rem; overflow-x: auto }
  @media (prefers-color-scheme: dark) { body { color: #ddd; background: #181818 } pre { background: #262626 } }
</style>
<h1>Holdfast $version</h1>
<p>This server answers for the training runs of its machine. Ask it from a terminal:</p>
<pre>holdfast ps -t $address
holdfast tail -t $address
holdfast query -t $address 'select step, loss from steps order by step desc limit 5'</pre>
<p>Its own user needs no token on the same machine. From elsewhere:
<code>HOLDFAST_TOKEN_FILE=FILE holdfast ps -t $address</code>.</p>
<p>As JSON: <code>/v1/runs</code>, <code>/v1/states</code>, <code>/v1/journal</code>, <code>/v1/tables</code>, with the token
in the header <code>Authorization: Bearer …</code>.</p>
</html>
""")


def root(request: Request) -> Page:
    """The page at `/`."""
    host = str(request.server.server_address[0])
    return Page(_PAGE.substitute(version=escape(__version__), address=escape(str(Address(host, request.server.port)))))
