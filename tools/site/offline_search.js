// Search in a site that was opened from a folder. Browsers let a page of file:// neither fetch the index nor start a worker. So the
// index comes from search_index.js, and the search runs in a hidden frame that takes the worker's place.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", {data}));
      inner.importScripts = (...sources) =>
        Promise.all(sources.map((source) => new Promise((done) => this.load(inner, new URL(source, url), done))));
      this.ready = new Promise((done) => this.load(inner, url, done));
      this.inner = inner;
    }
    load(inner, url, done) {
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = done;
      inner.document.body.appendChild(script);
    }
    postMessage(data) {
      this.ready.then(() => this.inner.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {}
  };
}
