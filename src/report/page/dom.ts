// dom.ts - makes and changes elements. Text is set as text and never as markup: what a peer or a log says cannot become a script.

export type Child = Node | string
type Props = Readonly<Record<string, string>>

/** An element with attributes and children. */
export function h<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  props: Props = {},
  ...children: readonly Child[]
): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag)
  for (const [name, value] of Object.entries(props)) element.setAttribute(name, value)
  element.append(...children)
  return element
}

/** Splits prose at backticks: text between them is to be typed. */
export const proseOf = (text: string): readonly Child[] =>
  text.split('`').map((part, at) => (at % 2 === 0 ? part : h('code', {}, part)))

/** The element of index.html that has this id, of this kind. */
export function elementOf<T extends Element>(kind: new () => T, id: string): T {
  const element = document.getElementById(id)
  if (!(element instanceof kind)) throw new Error(`there is no #${id}, or it is something else`)
  return element
}

export const byId = (id: string): HTMLElement => elementOf(HTMLElement, id)

/** Writes only a text that differs: an element that is read out or selected is left alone. */
export function setText(element: Element, text: string): void {
  if (element.textContent !== text) element.textContent = text
}

export function setAttribute(element: Element, name: string, value: string): void {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value)
}

/** A row of what an element has for its `key`. */
interface Part<T> {
  readonly element: HTMLElement
  show(item: T, at: number): void
}

/** Keeps the children of `parent` as `items` are: by key, so that what stays is the same element and keeps the focus. */
export function createList<T>(
  parent: HTMLElement,
  keyOf: (item: T) => string,
  create: (item: T) => Part<T>,
): (items: readonly T[]) => void {
  let parts = new Map<string, Part<T>>()
  return (items) => {
    const focused = parent.contains(document.activeElement) ? (document.activeElement as HTMLElement) : undefined
    const next = new Map<string, Part<T>>()
    let place = parent.firstElementChild
    items.forEach((item, at) => {
      const key = keyOf(item)
      const part = parts.get(key) ?? create(item)
      parts.delete(key)
      next.set(key, part)
      part.show(item, at)
      if (part.element === place) place = place.nextElementSibling
      else parent.insertBefore(part.element, place)
    })
    for (const { element } of parts.values()) element.remove()
    parts = next
    // An element that is moved loses it.
    if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true })
  }
}

/** The rows of a `dl`: each a name, and a text that changes. */
export function createFacts(parent: HTMLElement): (facts: readonly (readonly [name: string, text: string])[]) => void {
  return createList(
    parent,
    ([name]) => name,
    ([name]) => {
      const text = h('dd')
      const element = h('div', {}, h('dt', {}, name), text)
      return { element, show: ([, now]) => setText(text, now) }
    },
  )
}
