// xml.ts - parses the XML answers of EC2, which have only elements and text, and no attributes. Pure.

export interface XmlElement {
  readonly name: string
  readonly text: string
  readonly children: readonly XmlElement[]
}

/** The maximum nesting of elements. EC2's answers are nested about ten levels deep. */
const DEEPEST = 50
const ENTITIES: ReadonlyMap<string, string> = new Map([
  ['lt', '<'],
  ['gt', '>'],
  ['amp', '&'],
  ['quot', '"'],
  ['apos', "'"],
])

const unescaped = (text: string): string =>
  text.replaceAll(/&(?:#(\d+)|#x([\da-fA-F]+)|(\w+));/g, (all, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return ENTITIES.get(name) ?? all
    const code = decimal === undefined ? Number.parseInt(hex ?? '', 16) : Number(decimal)
    return code > 0 && code <= 0x10_ffff ? String.fromCodePoint(code) : all
  })

/** Returns the root element. Throws an Error if the text is not XML that consists only of elements and text. */
export function readXml(text: string): XmlElement {
  interface Open {
    readonly name: string
    text: string
    readonly children: XmlElement[]
  }
  const root: Open = { name: '', text: '', children: [] }
  const open: Open[] = [root]
  // Search with indexOf, because a regular expression would take quadratic time for a text with many `<`.
  for (let at = 0; at < text.length;) {
    const top = open.at(-1) ?? root
    const start = text.indexOf('<', at)
    top.text += unescaped(text.slice(at, start < 0 ? text.length : start))
    if (start < 0) break
    const isComment = text.startsWith('<!--', start)
    const end = text.indexOf(isComment ? '-->' : '>', start)
    if (end < 0) throw new Error('a tag or a comment has no end')
    at = end + (isComment ? 3 : 1)
    const tag = text.slice(start + 1, end)
    if (isComment || tag.startsWith('?')) continue
    if (tag.startsWith('/')) {
      if (open.length < 2 || tag.slice(1).trim() !== top.name) throw new Error(`the tag <${tag}> ends no element`)
      open.pop()
      continue
    }
    const [name = ''] = /^[^\s/]*/.exec(tag) ?? []
    const element: Open = { name, text: '', children: [] }
    top.children.push(element)
    if (!tag.endsWith('/')) open.push(element)
    // `open` also contains `root`.
    if (open.length > DEEPEST + 1) throw new Error(`it is nested more than ${DEEPEST} deep`)
  }
  const [first] = root.children
  if (open.length !== 1 || !first) throw new Error('it is not a complete XML document')
  return first
}

/** Returns the root element; undefined if `readXml` would throw. */
export function tryXml(text: string): XmlElement | undefined {
  try {
    return readXml(text)
  } catch {
    return undefined
  }
}

/** Returns the elements at a path such as `routeSet/item`. */
export function elementsAt(element: XmlElement, path: string): readonly XmlElement[] {
  let found: readonly XmlElement[] = [element]
  for (const name of path.split('/'))
    found = found.flatMap(({ children }) => children.filter((child) => child.name === name))
  return found
}

/** Returns the text of the first element at a path; an empty text if there is no such element. */
export const textAt = (element: XmlElement, path: string): string => elementsAt(element, path)[0]?.text.trim() ?? ''
