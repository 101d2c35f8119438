// The slider over a record: which of its moments is shown. The address keeps it, as `at`.

import { duration, el, number } from "./dom.js";
import { ask } from "./model.js";

const STEP_MS = 250;

/** The moment in words: a date where the record's clock is one, else since its beginning. */
export const moment = (at, first) =>
  at > 1e9 ? new Date(at * 1000).toLocaleString("en-GB") : `${duration(at - first)} after the start`;

/** Tell whether nothing takes time in a record: in a simulation where pods only arrive. */
export const timeless = (times) => times.length > 1 && times[0] === times.at(-1);

/** A moment of such a record in words, by its number. */
export const numbered = (n, times) => `moment ${number(n + 1)} of ${number(times.length)}`;

export class TimeSlider {
  #asked; // the moment that is on its way, or shown
  #shown;
  #playing;

  constructor(model, box) {
    this.model = model;
    this.box = box;
  }

  /** Build it where there is a record, once for each, and show the moment that the address names. */
  show() {
    const { moments = [], trouble } = this.model.about;
    this.box.hidden = !moments.length && !trouble;
    if (this.box.hidden || this.about === this.model.about) return;
    this.about = this.model.about;
    clearInterval(this.#playing);
    const last = Math.max(0, moments.length - 1);
    this.#asked = this.#shown = last; // which the stream's picture is of
    this.slider = el("input", { type: "range", min: 0, max: last, value: last, "aria-label": "Moment" });
    this.said = el("output", {});
    this.button = el("button", { type: "button", onclick: () => this.#play() }, "Play");
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    this.box.replaceChildren(this.button, this.slider, this.said,
      trouble ? el("p", { class: "trouble", role: "alert" }, trouble) : "");
    this.#say(last);
    this.follow();
  }

  /** Show the moment of the address; the last one where it names none. */
  follow() {
    const { moments = [] } = this.model.about;
    if (!moments.length) return;
    const named = new URLSearchParams(location.search).get("at");
    const last = moments.length - 1;
    const wanted = named === null ? last : Math.min(last, Math.max(0, parseInt(named, 10) || 0));
    if (wanted !== this.#asked) this.#take(wanted);
  }

  go(number) {
    const address = new URL(location.href);
    address.searchParams.set("at", number);
    this.box.dispatchEvent(new CustomEvent("weft-go", { bubbles: true, detail: { address: address.href, replace: true } }));
    this.#take(number);
  }

  /** Fetch a moment, one at a time: while one is on its way, only the latest wish is kept. */
  async #take(number) {
    this.#asked = number;
    this.#say(number);
    if (this.busy) return;
    this.busy = true;
    try {
      while (this.#shown !== this.#asked) {
        const wanted = this.#asked;
        const answer = await ask(`/api/moment?number=${wanted}`);
        if (!answer.ok) throw new Error((await answer.json()).error);
        this.model.take(await answer.json());
        this.box.dataset.shown = this.#shown = wanted;
      }
    } catch (failure) {
      console.debug("weft:", failure);
      this.#asked = this.#shown; // `follow` asks again once the console answers
      this.#say(this.#shown);
    } finally {
      this.busy = false;
    }
  }

  /** The moment that is shown in words; `at` is the picture's. */
  words(at) {
    const { moments } = this.model.about;
    return timeless(moments) ? numbered(Number(this.slider.value), moments) : moment(at, moments[0]);
  }

  #say(number) {
    const { moments } = this.model.about;
    this.slider.value = number;
    const words = moments.length ? this.words(moments[number]) : "";
    this.slider.setAttribute("aria-valuetext", words);
    this.said.value = words;
  }

  #play() {
    clearInterval(this.#playing);
    const stops = this.button.textContent === "Stop";
    this.button.textContent = stops ? "Play" : "Stop";
    if (stops) return;
    const last = this.model.about.moments.length - 1;
    if (Number(this.slider.value) >= last) this.go(0);
    this.#playing = setInterval(() => {
      const next = Number(this.slider.value) + 1;
      if (next > last) return this.#play();
      this.go(next);
    }, STEP_MS);
  }
}
