// lint-words.mjs - finds wording that is hard to read, in comments and in documents: `npm run lint:words -- [FILE...]`.
//
// Each rule has a pattern to find, and a hint with better wording. Code in backticks and quoted text are not checked,
// because their words come from flanneld, the kernel or an operator. The exit code is 1 if a pattern matches.

import { execFileSync } from 'node:child_process'
import { readFileSync } from 'node:fs'
import { dirname, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = dirname(dirname(fileURLToPath(import.meta.url)))

/** Files that lint-words.mjs does not check: other projects wrote them, or they record earlier versions of weft. */
const EXCLUDED =
  /^(LICENSE|CHANGELOG\.md|bench\/results\/|test\/store\/vendor\/|test\/unit\/scripts\/lint-words\.test\.ts|package-lock\.json)/

/**
 * @typedef {object} Rule
 * @property {string} name
 * @property {RegExp} pattern A pattern with the flag `g`, in which `^` matches the start of a comment or a paragraph.
 * @property {string} instead The hint that the lint prints: the wording to use instead.
 * @property {'comments'} [only] If present, the rule applies to comments but not to documents.
 */

/** @type {readonly Rule[]} */
const RULES = [
  {
    name: 'where-if',
    pattern:
      /\b[Ww]here (?:it|that|this|they|one|none|nobody|nothing|there|(?:the|an?|no|its|their) [\w-]+) (?:is|are|was|were|has|had|have|does|do|did|may|can|cannot|could|lacks?|needs?|knows?)\b/g,
    instead: '"if", "when" or "unless"; "where" is for places',
  },
  {
    name: 'where-participle',
    pattern: /\b[Ww]here (?:left out|needed|not needed|known|unknown|given|possible|wanted)\b/g,
    instead: '"if it is left out", "if needed"',
  },
  {
    name: 'clause-as-noun',
    pattern: /^(?:By |Of |To )?(?:What|Whatever|Whoever|Who|Whose|Whom)\b(?![^.]*\?)/g,
    instead: 'a noun and a verb: "The entries that ...", "Returns ..."',
    only: 'comments',
  },
  {
    name: 'of-what',
    pattern:
      /\b(?:of|by|from|to|for|with|in|than|as) what (?:is|are|was|were|has|had|it|they|this|that|the|an?|its|others?|we|came|belongs|peers?)\b/g,
    instead: 'a noun: "the packets that ..."',
  },
  {
    name: 'fragment',
    pattern:
      /^(?:The same (?:of|as|with|by|to|for)\b|The same[,;.:]|As (?:an?|of|the|it|by|at|in|with|its) |Of (?:each|an?|the|all|these|those|that|it|its) |By (?:the|its|each) |Also |Each but |That of |Those (?:of|that|whose) |One (?:that|which) |So (?:many|much|often|long) |This (?:many|often) |Within which|Beside )/g,
    instead: 'a full sentence that repeats the noun of its neighbour',
    only: 'comments',
  },
  {
    name: 'pointing-quantity',
    pattern: /\b(?:[Ss]o|[Tt]his) (?:many|much|often|long|late)\b(?! (?:as|that)\b)/g,
    instead: 'what the number limits: "The maximum number of ..."',
  },
  { name: 'of-before', pattern: /\b(?:of|from) before\b/g, instead: '"earlier", "previous"' },
  {
    name: 'is-no',
    pattern:
      /(?<![Tt]here )\b(?:is|are|was|were) (?:no (?!longer|more|further|less|reason|point|use|need|such\b)\w+|none of)\b|\bno such one\b/g,
    instead: 'a negated verb: "is not a lease"',
  },
  {
    name: 'inversion',
    pattern: /(?:,|\w) should (?:it|they|this|that|one) (?!be\b|not\b|have\b)|\bonly those are\b|, nor is one\b/g,
    instead: 'subject, verb, object: "if this process ends now"',
  },
  {
    name: 'told',
    pattern: /\b(?:tells?|told|telling) (?:of|none|nothing|apart)\b|\b(?:is|are|was|were|be|been) told\b/g,
    instead: '"reports", "publishes", "logs", "distinguishes"',
  },
  {
    name: 'private-verb',
    pattern:
      /\b(?:is|are|was|were|be|been) (?:asked|heard|believed|looked (?:for|at|up|after)|given back|passed over|taken for|made good|had)\b/g,
    instead: '"is probed", "is received", "is accepted", "is checked", "is ignored"',
  },
  {
    name: 'old-word',
    pattern:
      /\b(?:anew|befell|befalls?|befallen|mends?|mended|mending|dear|dearer|amiss|whereof|bequests?|errands?)\b/g,
    instead: '"again", "happens to", "repairs", "expensive", "wrong"',
  },
  {
    name: 'by-of-family',
    pattern:
      /\b[Bb]y (?:IPv[46]|both|either|whichever|that one|a family|the (?:other|first|second) family)\b|\b(?:packets?|subnets?|routes?|address(?:es)?|rules?|networks?|peers?|datagrams|leases?|headers?|hosts?|nodes?|those|ones?) of IPv[46]\b/g,
    instead: '"over IPv6", "an IPv6 subnet"',
  },
  {
    name: 'that-is-there',
    pattern: /\b(?:that|which|who) (?:is|are|was|were) there\b/g,
    instead: '"existing", "present", "running"',
  },
  {
    name: 'stands-lies',
    pattern:
      /\b(?:stands?|stood) (?:in|under|beside|at|across|there|anywhere|between|around|over)\b|\bstand(?=[.,;:)])|\b(?:lies|lie) (?:in|beside|across|there|under)\b/g,
    instead: '"is in", "is stored in", "precedes"',
  },
  {
    name: 'but-for',
    pattern: /\bbut for\b|\ball the same\b/g,
    instead: '"except", "nevertheless"',
  },
  {
    name: 'is-to',
    pattern:
      /\b(?:is|are|was|were) (?:not |never )?to (?:be|stop|go|have|draw|take|give|send|wait|come|see|know|do|carry|begin|stand|keep|ask|get|answer|find|lose|use|end|reach|hear|look|run|speak|join|open|close|write|read|hold|let|lie)\b/g,
    instead: '"must", "should" or "will"',
  },
]

/**
 * @typedef {object} Passage A comment or a paragraph without comment or Markdown marks.
 * @property {string} text The lines of the passage, joined by newlines, so that the line of a match can be counted.
 * @property {number} line The line number in the file at which the passage starts, from 1.
 */

/**
 * Replaces code spans, quoted text and URLs by blanks, so that no rule matches inside them. The length of the text does
 * not change.
 * @param {string} text
 */
const hidden = (text) => text.replaceAll(/`[^`]*`|"[^"\n]*"|https?:\/\/\S+/g, (part) => part.replaceAll(/[^\n]/g, '_'))

/**
 * Returns the comments of a source file as passages. Consecutive `//` lines are one comment.
 * @param {string} source
 * @returns {Passage[]}
 */
function commentsOf(source) {
  const passages = []
  let open = false
  let last = -1
  for (const [index, line] of source.split('\n').entries()) {
    const add = (/** @type {string} */ text, /** @type {boolean} */ joins) => {
      const previous = passages.at(-1)
      if (joins && previous !== undefined && last === index - 1 && text !== '') previous.text += `\n${text}`
      else if (text !== '') passages.push({ text, line: index + 1, end: index })
      last = text === '' ? -1 : index
    }
    if (open) {
      open = !line.includes('*/')
      add(
        line
          .replace(/^\s*\*(?!\/) ?/, '')
          .replace(/\s*\*\/.*$/, '')
          .replace(/^\s*@\w+(?: \{[^}]*\})?(?: \[?[\w.]+\]?(?=\s))?\s*/, ''),
        !/^\s*\*\s*@/.test(line),
      )
      continue
    }
    const block = /^\s*\/\*\*?\s?(.*)$/.exec(line)
    if (block) {
      open = !block[1].includes('*/')
      add(block[1].replace(/\s*\*\/.*$/, '').replace(/^@.*$/, ''), false)
      continue
    }
    const whole = /^\s*\/\/[/<!]*\s?(.*)$/.exec(line)
    if (whole) {
      add(whole[1].replace(/^[\w.-]+\.(?:ts|mjs|h|cc) - /, ''), true)
      continue
    }
    const trailing = /^(?:[^'"`/]|\/(?!\/)|'[^']*'|"[^"]*"|`[^`]*`)*?\s\/\/[/<!]*\s(.*)$/.exec(line)
    if (trailing) add(trailing[1], false)
  }
  return passages
}

/**
 * Returns the names of the tests in a test file, which are checked like comments.
 * @param {string} source
 * @returns {Passage[]}
 */
const namesOfTests = (source) =>
  [...source.matchAll(/(?:\b(?:it|describe)(?:\.\w+)*|^ *[\])}]+\))\(\s*'((?:[^'\\\n]|\\.)+)',/gm)].map((match) => ({
    text: match[1],
    line: source.slice(0, match.index + match[0].indexOf("'")).split('\n').length,
  }))

/**
 * Returns the paragraphs, list items and table cells of a document, without code blocks.
 * @param {string} source
 * @returns {Passage[]}
 */
function paragraphsOf(source) {
  const passages = []
  let fenced = false
  let last = -1
  for (const [index, line] of source.split('\n').entries()) {
    if (/^\s*```/.test(line)) fenced = !fenced
    if (fenced || /^\s*(?:```|$|<!--)/.test(line)) {
      last = -1
      continue
    }
    const text = line.replace(/^\s*(?:[-*>]|\d+\.|#+)\s+/, '')
    const previous = passages.at(-1)
    if (text === line && !line.startsWith('|') && previous !== undefined && last === index - 1)
      previous.text += `\n${text}`
    else passages.push({ text, line: index + 1 })
    last = line.startsWith('|') ? -1 : index
  }
  return passages
}

const files = process.argv.slice(2)
const checked = (
  files.length > 0
    ? files
    : execFileSync('git', ['ls-files', '-co', '--exclude-standard'], { cwd: root, encoding: 'utf8' }).split('\n')
).filter((file) => /\.(?:ts|mjs|h|cc|md)$/.test(file) && !EXCLUDED.test(file))

let hits = 0
for (const file of checked) {
  const isDocument = file.endsWith('.md')
  const source = readFileSync(resolve(root, file), 'utf8')
  const names = file.endsWith('.test.ts') ? namesOfTests(source).map((name) => ({ ...name, isName: true })) : []
  const passages = isDocument ? paragraphsOf(source) : [...commentsOf(source), ...names]
  for (const { text, line, isName } of passages) {
    const flat = hidden(text)
    const joined = flat.replaceAll('\n', ' ')
    for (const { name, pattern, instead, only } of RULES) {
      if ((isDocument || isName) && only === 'comments') continue
      for (const match of joined.matchAll(pattern)) {
        hits += 1
        const at = line + flat.slice(0, match.index).split('\n').length - 1
        process.stdout.write(`${file}:${at}: ${name}: "${match[0].trim()}": write ${instead}\n`)
      }
    }
  }
}
if (hits > 0) {
  process.stderr.write(`lint:words: ${hits} passages to rewrite\n`)
  process.exit(1)
}
