// messages.mjs - writes docs/messages.md: every error and warning that weft can print, with its cause and its remedy.
// It also writes the table of findings in docs/weft-network.md.
//
// scripts/messages.txt has one entry for each message: the line as weft prints it, its cause, and a remedy if the
// message itself has none. messages.mjs reads remedies that are part of a message from the syntax tree of the code, so
// docs/messages.md has exactly the same words.

import { readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { parseAst } from 'rolldown/parseAst'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Names of the functions whose first argument is a message and whose second argument is its remedy. */
const MAKERS = new Set(['fail', 'invalid'])

/**
 * Returns a marker for a value that the code inserts into a message when it runs. The private-use characters around the
 * name cannot occur in a message.
 */
const hole = (name) => `\uE000${name}\uE001`
const HOLE = /\uE000([^\uE001]*)\uE001/g
/**
 * Returns a name in camel case as separate words, such as `listen port` for `listenPort`. Returns `...` for the name of
 * a constant in capitals, which says nothing to an operator.
 */
const words = (name) => (/[a-z]/.test(name) ? name.replaceAll(/[A-Z]/g, (letter) => ` ${letter.toLowerCase()}`) : '...')

/**
 * Returns the text of a string expression, with a marker (`hole`) in place of each inserted value. Returns undefined if
 * the expression is not a string.
 * @param {any} node @param {ReadonlyMap<string, any>} constants @returns {string | undefined}
 */
function textOf(node, constants) {
  if (node?.type === 'Literal' && typeof node.value === 'string') return node.value
  if (node?.type === 'Identifier' && constants.has(node.name)) return textOf(constants.get(node.name), new Map())
  if (node?.type === 'TemplateLiteral')
    return node.quasis.map(({ value }, at) => value.cooked + filledIn(node.expressions[at], constants)).join('')
  if (node?.type !== 'BinaryExpression' || node.operator !== '+') return undefined
  const [left, right] = [textOf(node.left, constants), textOf(node.right, constants)]
  return left === undefined && right === undefined ? undefined : (left ?? hole('...')) + (right ?? hole('...'))
}

/** Returns the text that docs/messages.md shows in place of an expression `${...}` inside a template string. */
function filledIn(node, constants) {
  if (node === undefined) return ''
  const constant = node.type === 'Identifier' ? textOf(node, constants) : undefined
  if (constant !== undefined) return constant
  if (node.type === 'Identifier') return hole(words(node.name))
  return hole(node.type === 'MemberExpression' && !node.computed ? words(node.property.name) : '...')
}

/** Returns the remedies that an expression can have as its value; both branches of a conditional expression count. */
function remediesOf(node, constants) {
  if (node?.type === 'ConditionalExpression')
    return [...remediesOf(node.consequent, constants), ...remediesOf(node.alternate, constants)]
  if (node?.type === 'Identifier' && constants.get(node.name)?.type === 'ConditionalExpression')
    return remediesOf(constants.get(node.name), new Map())
  const text = textOf(node, constants)
  return text === undefined ? [] : [text]
}

/** Calls `visit` for a node of a syntax tree and for all nodes under it. */
function walk(node, visit) {
  if (Array.isArray(node)) for (const child of node) walk(child, visit)
  else if (node !== null && typeof node === 'object') {
    visit(node)
    for (const [name, child] of Object.entries(node)) if (name !== 'type') walk(child, visit)
  }
}

/**
 * Returns the message and the remedies of a call of `fail` or `invalid`, or of `new WeftError`; undefined for any other
 * syntax node.
 */
function messageOf(node, constants) {
  if (node.type === 'NewExpression' && node.callee.name === 'WeftError') {
    const remedy = node.arguments[2]?.properties?.find(({ key }) => key?.name === 'remedy')?.value
    return { text: textOf(node.arguments[1], constants), remedies: remediesOf(remedy, constants) }
  }
  if (node.type !== 'CallExpression') return undefined
  if (!MAKERS.has(node.callee.name)) return undefined
  const isCode = /^[A-Z_]+$/.test(textOf(node.arguments[0], constants) ?? '')
  const [message, remedy] = node.arguments.slice(isCode ? 1 : 0)
  return { text: textOf(message, constants), remedies: remediesOf(remedy, constants) }
}

/**
 * Returns each message of `src` that is written as one string in the code, with the remedies that the same call passes.
 * @returns {{ text: string, remedies: string[] }[]}
 */
function codeMessages() {
  const found = []
  for (const path of readdirSync(join(root, 'src'), { recursive: true, encoding: 'utf8' }).toSorted()) {
    if (!path.endsWith('.ts')) continue
    const tree = parseAst(readFileSync(join(root, 'src', path), 'utf8'), { lang: 'ts' })
    const constants = new Map()
    const twice = new Set()
    walk(tree, ({ type, id, init }) => {
      if (type !== 'VariableDeclarator' || id.type !== 'Identifier' || init === null) return
      if (constants.has(id.name)) twice.add(id.name)
      constants.set(id.name, init)
    })
    for (const name of twice) constants.delete(name)
    walk(tree, (node) => {
      const message = messageOf(node, constants)
      if (message?.text !== undefined) found.push(message)
    })
  }
  return found
}

/**
 * Returns the fixed texts between the inserted values of a message. Leaves out short texts, such as a preposition,
 * because they occur in many messages.
 */
const fixedParts = (text, gap) =>
  text
    .split(gap)
    .map((part) => part.trim())
    .filter((part) => /[a-z]{3}/.test(part))

/** True if `text` contains all of `parts` in their order. */
function hasInOrder(text, parts) {
  let from = 0
  for (const part of parts) {
    const at = text.indexOf(part, from)
    if (at < 0) return false
    from = at + part.length
  }
  return parts.length > 0
}

/**
 * True if a line of messages.txt describes the message `text` of the code. If the line is abbreviated with `...`, it
 * need not contain all of the message's words.
 */
const isLineOf = (line, text) =>
  hasInOrder(line, fixedParts(text, /\uE000[^\uE001]*\uE001/)) ||
  (line.includes('...') && hasInOrder(text, fixedParts(line, /<[^<>]+>|\.\.\./)))

/**
 * Reads the sections and entries of scripts/messages.txt.
 * @returns {{ title: string, entries: { line: string, cause: string, remedy: string }[] }[]}
 */
function sections() {
  const found = []
  for (const block of readFileSync(join(root, 'scripts/messages.txt'), 'utf8').split(/\n{2,}/)) {
    const [line = '', ...more] = block.trim().split('\n')
    if (line.startsWith('## ')) found.push({ title: line.slice(3), entries: [] })
    else if (line !== '' && !line.startsWith('# ')) {
      const value = (name) => (more.find((text) => text.startsWith(`  ${name}: `)) ?? '').slice(name.length + 4)
      found.at(-1).entries.push({ line, cause: value('cause'), remedy: value('do') })
    }
  }
  return found
}

/**
 * Returns the text with readable placeholders for inserted values: `<name>` inside code, and italics elsewhere, because
 * Markdown would treat `<name>` as an HTML element.
 */
const showHoles = (text) =>
  text
    .split(/(`[^`]*`)/)
    .map((part) => part.replaceAll(HOLE, part.startsWith('`') ? '<$1>' : '*$1*').replaceAll('*...*', '…'))
    .join('')

/**
 * True if a remedy of the code has a placeholder outside a code span, or a placeholder without a name. A reader of
 * docs/messages.md would not understand it. The remedy is then not copied to the page, and scripts/messages.txt must
 * have a remedy instead.
 */
const hasUnnamedValue = (remedy) =>
  remedy
    .split(/(`[^`]*`)/)
    .some((part) => (part.startsWith('`') ? part.includes(hole('...')) : part.includes('\uE000')))

/**
 * Returns a remedy from the code as a list. The list is empty if `own`, the remedy of the entry in messages.txt,
 * already contains it.
 */
const unlike = (remedy, own) => (own.includes(remedy.replace(/\.$/, '')) ? [] : [remedy])

/** Returns a remedy as a sentence. In the code a remedy is a clause without a capital letter and a full stop. */
const sentence = (clause) =>
  /^ip6?tables\b/.test(clause) ? `${clause}.` : `${clause[0].toUpperCase()}${clause.slice(1)}.`
const code = (line) => (line.includes('`') ? `\`\` ${line} \`\`` : `\`${line}\``)
const cell = (text) => text.replaceAll('|', String.raw`\|`)

/** Returns all entries by section. In each entry the remedies from the code precede those of messages.txt. */
export function messages() {
  const all = sections()
  const entries = all.flatMap((section) => section.entries)
  const remedies = new Map(entries.map((entry) => [entry, new Set()]))
  /** The entries of messages.txt that must have a remedy of their own. */
  const byHand = new Set()
  for (const message of codeMessages()) {
    if (message.remedies.length === 0) continue
    const fitting = entries.filter(({ line }) => isLineOf(line, message.text))
    const entry = fitting.toSorted((a, b) => a.line.length - b.line.length)[0]
    for (const remedy of entry ? message.remedies : [])
      if (hasUnnamedValue(remedy)) byHand.add(entry)
      else for (const text of unlike(sentence(showHoles(remedy)), entry.remedy)) remedies.get(entry).add(text)
  }
  const whole = (entry) => ({
    ...entry,
    remedy: byHand.has(entry)
      ? entry.remedy
      : [[...remedies.get(entry)].join(' Or: '), entry.remedy].filter(Boolean).join(' '),
  })
  return all.map((section) => ({ ...section, entries: section.entries.map(whole) }))
}

export function page(all = messages()) {
  const tables = all.map(({ title, entries }) => {
    const rows = entries.map(({ line, cause, remedy }) => `| ${code(line)} | ${cell(cause)} | ${cell(remedy)} |`)
    return `## ${title}\n\n| message of weft | cause | what to do |\n|---|---|---|\n${rows.join('\n')}\n`
  })
  return `${INTRODUCTION}\n${tables.join('\n')}`
}

const INTRODUCTION = `<!-- Written by scripts/messages.mjs from scripts/messages.txt and the sources. Do not edit docs/messages.md by hand. -->

# Messages

This page lists every error and every warning that weft can print, with its cause and what to do. \`<...>\` stands for a value that weft fills
in. Search the page for a few words of the message that you see.

- In the log, a line that begins with \`E\` is an error, and a line that begins with \`W\` is a warning.
- An error ends a weftd that is starting, unless the message or its cause says that weftd waits or tries again. An error never ends a weftd that forwards packets.
- If weft knows a remedy, it prints the message, then \`; \` and the remedy. The last column of each table on this page gives a remedy even for messages that weft prints without one.
- If the same event repeats, weftd logs only some of the repetitions, so one log line may stand for many events.
`

/** Returns the text of docs/weft-network.md with a table of findings that is generated from the code. */
function networkPage() {
  const rows = []
  walk(parseAst(readFileSync(join(root, 'src/report/network-findings.ts'), 'utf8'), { lang: 'ts' }), (node) => {
    if (node.type !== 'Property' || node.key.type !== 'Literal') return
    const value = (name) => node.value.properties?.find(({ key }) => key.name === name)?.value.value
    if (value('level'))
      rows.push(`| \`${node.key.value}\` | ${value('level')} | ${value('means')} | ${value('fix')} |\n`)
  })
  const text = readFileSync(join(root, 'docs/weft-network.md'), 'utf8')
  return text.replace(/(?<=\n\| finding .*\n\|[-|]+\n)(?:\|.*\n)*/, () => rows.join(''))
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  writeFileSync(join(root, 'docs/messages.md'), page())
  writeFileSync(join(root, 'docs/weft-network.md'), networkPage())
}
