import DOMPurify from 'dompurify';
import { Marked } from 'marked';
import { copyButton } from './dom.js';

const marked = new Marked({ gfm: true, breaks: true });

/** What a model may write: text with structure. No images, no styles, no forms: nothing that could fetch or deceive. */
const SANITISE = {
  ALLOWED_TAGS: [
    'a', 'b', 'blockquote', 'br', 'code', 'del', 'em', 'h1', 'h2', 'h3', 'h4', 'h5', 'h6', 'hr', 'i', 'li', 'ol', 'p',
    'pre', 'strong', 'sub', 'sup', 'table', 'tbody', 'td', 'th', 'thead', 'tr', 'ul',
  ],
  ALLOWED_ATTR: ['href', 'start'],
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
};

DOMPurify.addHook('afterSanitizeAttributes', (node) => {
  if (node.tagName !== 'A') return;
  node.setAttribute('target', '_blank');
  node.setAttribute('rel', 'noopener noreferrer nofollow');
});

/** Shows Markdown in an element. */
export function showMarkdown(element: HTMLElement, text: string): void {
  element.innerHTML = DOMPurify.sanitize(marked.parse(text, { async: false }), SANITISE);
}

/** Gives every block of code a button to copy it. */
export function addCopyButtons(element: HTMLElement): void {
  for (const block of element.querySelectorAll('pre')) {
    const code = block.textContent ?? '';
    block.append(copyButton(() => code));
  }
}
