// Browsers refuse to start workers for pages that were opened from disk, and the theme searches in a worker.
// Run the worker's script in a hidden frame of the page instead. The theme needs "iframe-worker" in this file's name.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      this.scope = frame.contentWindow;
      this.scope.document.open();
      this.scope.document.close();
      this.scope.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = this.scope.document.createElement("script");
      script.src = new URL(url, document.baseURI);
      this.loaded = new Promise((resolve) => script.addEventListener("load", resolve));
      this.scope.document.documentElement.append(script);
    }

    async postMessage(data) {
      await this.loaded;
      this.scope.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
