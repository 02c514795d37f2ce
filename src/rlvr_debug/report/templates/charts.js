"use strict";
// Draws every chart from its description in #specs. Vega's own interpreter, as the page's policy allows no eval.
(async () => {
  const places = document.querySelectorAll(".chart");
  const failed = (place, error) => {
    place.textContent = "This chart could not be drawn: " + error.message;
    console.error(error);
  };
  let specs;
  try {
    specs = JSON.parse(await unpacked("specs"));
    const vega = document.createElement("script");
    vega.textContent = await unpacked("vega");
    document.head.append(vega);
  } catch (error) {
    places.forEach((place) => failed(place, error));
    return;
  }
  const options = { mode: "vega-lite", renderer: "svg", actions: false, ast: true };
  const draw = async (place) => {
    const label = place.getAttribute("aria-label");
    try {
      await vegaEmbed(place, specs[place.dataset.chart], options);
      place.setAttribute("aria-label", label); // Vega writes "Vega visualization" over it
      place.dataset.drawn = "yes";
    } catch (error) {
      failed(place, error);
    }
  };
  places.forEach(draw);
})();
