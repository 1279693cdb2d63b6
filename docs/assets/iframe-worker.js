// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker from a file, so the search of a site that is opened as a file would not answer.
// There, this class stands for a worker: it runs the same script in a hidden frame of the page.
if (location.protocol === "file:") {
  class IFrameWorker extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      this.started = new Promise((resolve, reject) => {
        inner.document.open()
        inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
        const script = inner.document.createElement("script")
        script.onload = () => resolve(inner)
        script.onerror = () => reject(new Error(`cannot load ${url}`))
        script.src = url
        inner.document.append(inner.document.createElement("html"))
        inner.document.documentElement.append(script)
        inner.document.close()
      })
    }
    postMessage(data) {
      this.started.then(inner => inner.dispatchEvent(new inner.MessageEvent("message", { data })))
    }
    terminate() {}
  }
  window.IFrameWorker = IFrameWorker
  window.Worker = IFrameWorker
}
