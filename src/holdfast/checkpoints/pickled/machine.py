"""Follow a pickle stream with a stack of our own: everything is described, nothing is looked up, made or called.

Where Python's unpickler would stop with an error, this one goes on if it can: the more of a strange stream is seen, the more
of its names are told. It stops at what it cannot follow, and when a stream takes more than a sane one does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast.checkpoints.harmless import CALLS_WHAT_IT_IS_GIVEN, STORAGES
from holdfast.checkpoints.names import Use, judge, today
from holdfast.checkpoints.pickled.known import make
from holdfast.checkpoints.pickled.opcodes import OPCODES, Blob, CutShort, NotFollowed, Source
from holdfast.checkpoints.pickled.stack import CONTAINER, Named, Pairs, Stack, StorageUse, Thing
from holdfast.checkpoints.pickled.stack import Findings as Findings

LIMIT = 16_000_000  # units of work: some 150,000 tensors, or a list of sixteen million numbers
_TURN = 1000  # instructions between two looks at what was spent
_NAME = 100  # units for a name: a checkpoint has some dozens
_LONGEST_NAME = 600  # characters; a name of more than 500 is refused
_CALLS = 20  # a call inside a call: torch writes two
_PARTIAL = "functools.partial"
_GETATTR = "builtins.getattr"  # how protocols below 4 write `Class.method`: judged by what it is asked for


class Machine(Stack):
    """One stream: `run` it, then look at `value` and `problem`."""

    def __init__(self, source: Source, findings: Findings, *, depth: int = 0) -> None:
        super().__init__(source, findings, depth=depth)
        source.keep = findings.keep
        self._judged: set[tuple[str, str, Use]] = set()
        self._calls = 0  # one in the other

    def _ignore(self, _: Any) -> None:
        pass

    def run(self) -> Machine:
        """Read up to the end of the stream, or as far as it can be followed."""
        try:
            self._follow()
        except CutShort:
            self.cut, self.problem = True, "it ends in the middle"
        except NotFollowed as error:
            self.problem = str(error)
        except LookupError:  # an empty stack, a memo that was never filled
            self.problem = "it uses something that it never stored"
        except (ValueError, TypeError, OverflowError):  # UnicodeDecodeError too
            self.problem = "it holds an invalid instruction"
        if self.problem is not None:
            self.value = self.begun()
        return self

    def _follow(self) -> None:
        source, table = self.source, self._table()
        while True:
            for _ in range(_TURN):
                if source.at >= len(source.buffer):
                    source.fill(1)
                code = source.buffer[source.at]
                source.at += 1
                instruction = table[code]
                if instruction is None:
                    raise NotFollowed(f"the byte {code:#04x} is not a pickle instruction")
                read, do = instruction
                if do is None:
                    self._stack.append(read(source))
                elif do(read(source)):
                    return
            self.findings.spent += _TURN
            if self.findings.spent > LIMIT:
                raise NotFollowed("it is longer or more nested than a checkpoint ever is")

    def _table(self) -> list[tuple[Callable[[Source], Any], Callable[[Any], Any] | None] | None]:
        table: list[Any] = [None] * 256
        for code, (name, read) in OPCODES.items():
            table[code] = (read, None if name == "value" else getattr(self, f"_{name}"))
        return table

    # --- names

    def name(self, module: str, name: str, use: Use = "named") -> Named:
        """A name as it is called today, judged."""
        module, name = today(module[:_LONGEST_NAME], name[:_LONGEST_NAME])
        named = Named(module, name)
        if (module, name, use) in self._judged or (named.full == _GETATTR and use == "named"):
            return named
        self._judged.add((module, name, use))
        self.findings.spent += _NAME
        verdict = judge(module, name, use)
        if verdict == "refused":
            self.findings.refuse(named.full)
        elif verdict == "needs code":
            self.findings.needs_code.setdefault(named.full)
        return named

    def _name(self, pair: tuple[str, str]) -> None:
        self._stack.append(self.name(*pair))

    def _stack_name(self, _: None) -> None:
        name, module = self._stack.pop(), self._stack.pop()
        if isinstance(module, str) and isinstance(name, str):
            self._stack.append(self.name(module, name))
        else:
            self.findings.refuse("a name that is put together while loading")
            self._stack.append(Thing("a name"))

    def _extension(self, code: int) -> None:
        self.findings.refuse(f"extension code {code}")
        self._stack.append(Thing(f"extension code {code}"))

    # --- calls

    def call(self, what: Any, arguments: Any, use: Use = "called") -> Any:
        """What a call would give, described."""
        self.findings.spent += CONTAINER
        args = arguments if isinstance(arguments, tuple) else (arguments,)
        if isinstance(what, Named) and what.full == _GETATTR:
            return self._attribute(args)
        self.judge_call(what, use)
        self._judge_given(what, args)
        if not isinstance(what, Named):
            return Thing(what.name if isinstance(what, Thing) else "a call", args)
        if self._calls >= _CALLS:
            return Thing(what.full, args)
        self._calls += 1
        try:
            return make(self, what, args)
        finally:
            self._calls -= 1

    def judge_call(self, what: Any, use: Use = "called") -> None:
        """Judge something that is called, or of which an object is made."""
        for _ in range(100):  # partial(partial(partial(…
            if not isinstance(what, Thing) or what.name != _PARTIAL:
                break
            state = what.state if isinstance(what.state, tuple) else ()
            what, use = next(iter((*state[:1], *what.arguments[:1])), None), "called"
        if isinstance(what, Named):
            self.name(what.module, what.name, use)
        elif isinstance(what, Thing):
            self.findings.refuse(f"a call of what {what.name} gives")

    def _judge_given(self, what: Any, args: tuple[Any, ...]) -> None:
        """What is handed to a call: `getattr` itself, or something that will be called."""
        passes_on = isinstance(what, Named) and what.full in CALLS_WHAT_IT_IS_GIVEN
        if isinstance(what, Named) and what.full == _PARTIAL:
            self._judge_partial(args)
        for value in args:
            if isinstance(value, Named) and value.full == _GETATTR:
                self.findings.refuse(_GETATTR)
            elif passes_on and (isinstance(value, Named) or (isinstance(value, Thing) and value.name == _PARTIAL)):
                self.judge_call(value)

    def _judge_partial(self, args: Any) -> None:
        """A partial is of a function that the stream names, and so judges; of anything else it could be of whatever there is."""
        function = args[0] if isinstance(args, tuple) and args else None
        if not isinstance(function, Named) and not (isinstance(function, Thing) and function.name == _PARTIAL):
            self.findings.refuse(_PARTIAL)

    def _attribute(self, args: tuple[Any, ...]) -> Any:
        """`getattr(Class, "method")`, as older protocols write it. Of anything but a class or an object of one it is refused."""
        of, attribute = args if len(args) == 2 else (None, None)
        plain = isinstance(attribute, str) and "__" not in attribute
        if plain and isinstance(of, Named) and of.full != _GETATTR:
            return self.name(of.module, f"{of.name}.{attribute}")
        if not plain or not isinstance(of, Thing) or of.name not in self.findings.needs_code:
            self.findings.refuse(_GETATTR)
        return Thing(f"{of.name}.{attribute}"[:_LONGEST_NAME] if isinstance(of, Thing) else _GETATTR, (of,))

    def _reduce(self, _: None) -> None:
        arguments, what = self._stack.pop(), self._stack.pop()
        self._stack.append(self.call(what, arguments))

    def _newobj(self, _: None) -> None:
        arguments, kind = self._stack.pop(), self._stack.pop()
        self._stack.append(self.call(kind, arguments, "made"))

    def _newobj_ex(self, _: None) -> None:
        named, arguments, kind = self._stack.pop(), self._stack.pop(), self._stack.pop()
        made = self.call(kind, arguments, "made")
        if isinstance(made, Thing):
            made.pairs = named if isinstance(named, Pairs) else None
        self._stack.append(made)

    def _obj(self, _: None) -> None:
        kind, *arguments = self._since_mark()
        self._stack.append(self.call(kind, tuple(arguments)))

    def _inst(self, pair: tuple[str, str]) -> None:
        kind, arguments = self.name(*pair), tuple(self._since_mark())
        self._stack.append(self.call(kind, arguments))

    def _build(self, _: None) -> None:
        state, into = self._stack.pop(), self._stack[-1]
        if isinstance(into, Thing):
            into.state = state
            if into.name == _PARTIAL:
                self._judge_partial(state)
        elif isinstance(into, Named):
            self.findings.refuse(f"a change of {into.full}")

    # --- storages

    def _persid(self, key: str) -> None:
        self._stack.append(Thing("something outside the file", (key,)))

    def _binpersid(self, _: None) -> None:
        self._stack.append(self._outside(self._stack.pop()))

    def _outside(self, identity: Any) -> Any:
        """A storage, which is how torch names tensors' bytes; or a class, with which old torch kept its source."""
        kind = _words(identity[0]) if isinstance(identity, tuple) and len(identity) > 1 else ""
        if kind == "module":
            return identity[1]
        if kind == "storage" and len(identity) in (5, 6):
            of, key, _, count, view = (*identity[1:], None)[:5]
            dtype = STORAGES.get(of.name) if isinstance(of, Named) else None
            if dtype and _is_count(count) and isinstance(key, str | int | Blob):
                if view is not None:
                    raise NotFollowed("it holds a part of a storage as a storage of its own, as torch did before 0.4")
                return self._storage(_words(key), dtype, count)
        return Thing("something outside the file", (identity,))

    def _storage(self, key: str, dtype: str, count: int) -> StorageUse:
        """The storage of that key, the same one each time."""
        if key not in self.keys:
            self.findings.spent += CONTAINER
            self.keys[key] = StorageUse(len(self.findings.storages), key, dtype, count, inside=self.depth > 0)
            self.findings.storages.append(self.keys[key])
        return self.keys[key]


def _words(key: Any) -> str:
    """A key as text: torch wrote bytes under Python 2."""
    return (
        (key.data or b"").decode("ascii", "replace") if isinstance(key, Blob) else str(key) if isinstance(key, str | int) else ""
    )


def _is_count(count: Any) -> bool:
    return isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 1 << 62
