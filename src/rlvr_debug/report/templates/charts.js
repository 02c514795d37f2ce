"use strict";
// Draws every chart from its description in #specs. Vega's own interpreter, as the page's policy allows no eval.
(() => {
  const specs = JSON.parse(document.getElementById("specs").textContent);
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true };
  const draw = async (place) => {
    const label = place.getAttribute("aria-label");
    try {
      await vegaEmbed(place, specs[place.dataset.chart], options);
      place.setAttribute("aria-label", label); // Vega writes "Vega visualization" over it
      place.dataset.drawn = "yes";
    } catch (error) {
      place.textContent = "This chart could not be drawn: " + error.message;
      console.error(error);
    }
  };
  document.querySelectorAll(".chart").forEach(draw);
})();
