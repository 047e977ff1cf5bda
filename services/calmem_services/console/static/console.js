// The only script: shows the slider's value while it moves. Without it the value is shown after sending.
"use strict";
const slider = document.getElementById("fill");
if (slider) {
  const shown = document.getElementById("fill-shown");
  const tier = (fill) => (fill < 60 ? "full" : fill < 70 ? "reduced" : fill < 80 ? "minimal" : "facts only");
  const show = () => { shown.textContent = `${slider.value} % (${tier(Number(slider.value))})`; };
  slider.addEventListener("input", show);
  show();
}
