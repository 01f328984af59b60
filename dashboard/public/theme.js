// Before the first paint: the theme chosen here, else the system's.
try {
  const theme = localStorage.getItem("promethean-theme");
  if (theme) document.documentElement.dataset.theme = theme;
} catch { /* storage is off: the system's theme it is */ }
