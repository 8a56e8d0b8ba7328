/**
 * xterm.js under a policy without inline styles.
 *
 * It writes rules into style elements and style attributes, which the page's Content-Security-Policy
 * refuses, rightly. The same rules go through where the policy allows them: a constructed style sheet,
 * and the style object of an element. xterm.js takes the document from several places, so the
 * document's own way to make elements is what is changed, when the first terminal is opened.
 */

let done = false;

export function allowTerminalStyles(document: Document): void {
  if (done) return;
  done = true;
  const real = document.createElement.bind(document);
  document.createElement = (name: string, options?: ElementCreationOptions): HTMLElement => {
    // Even an empty style element is refused: what holds the rules' place is a template.
    if (name === "style") return adoptRules(document, real("template"));
    const element = real(name, options);
    if (name === "span") setByObject(element);
    return element;
  };
}

/** What is written into the element becomes the rules of a sheet that the document adopts. */
function adoptRules(document: Document, element: HTMLElement): HTMLElement {
  const sheet = new CSSStyleSheet();
  document.adoptedStyleSheets.push(sheet);
  Object.defineProperty(element, "textContent", {
    set(css: string) {
      sheet.replaceSync(css);
    },
  });
  const remove = element.remove.bind(element);
  element.remove = () => {
    document.adoptedStyleSheets = document.adoptedStyleSheets.filter((other) => other !== sheet);
    remove();
  };
  return element;
}

function setByObject(element: HTMLElement): void {
  const plain = element.setAttribute.bind(element);
  element.setAttribute = (name, value) => {
    if (name === "style") element.style.cssText = value;
    else plain(name, value);
  };
}
