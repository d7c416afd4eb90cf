// Before anything is drawn, so that the page does not flash.
{
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const choose = () => { document.documentElement.dataset.theme = localStorage.getItem("theme") || (dark.matches ? "dark" : "light"); };
  choose();
  dark.addEventListener("change", choose);
}
