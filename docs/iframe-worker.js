// Search without a server: a page opened from the disk may start no worker, so a hidden frame does its work.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(address) {
      super();
      const url = String(address);
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.ready = new Promise(done => {
        const inside = this.frame.contentDocument;
        inside.open();
        inside.write(`<!doctype html><script>
          postMessage = message => parent.postMessage(message, "*");
          importScripts = (...names) => names.reduce((before, name) => before.then(() => new Promise(done => {
            const script = document.createElement("script");
            script.src = name; script.onload = done; document.head.append(script);
          })), Promise.resolve());
        <\/script><script src="${encodeURI(url)}"><\/script>`);
        inside.close();
        this.frame.onload = done;
      });
      this.hear = event => {
        if (event.source !== this.frame.contentWindow) return;
        const told = new MessageEvent("message", {data: event.data});
        this.dispatchEvent(told);
        if (this.onmessage) this.onmessage(told);
      };
      addEventListener("message", this.hear);
    }
    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", {data})));
    }
    terminate() {
      removeEventListener("message", this.hear);
      this.frame.remove();
    }
  };
  window.Worker = window.IFrameWorker;
}
