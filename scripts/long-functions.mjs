// long-functions.mjs - finds the long functions of C++ code that clang-format has formatted.

/** Returns the text with spaces in place of comments, literals and preprocessor lines, which may contain braces. */
function withoutLiterals(text) {
  const blank = (match) => match.replaceAll(/[^\n]/g, ' ')
  return text
    .replaceAll(/\/\/.*|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])'(?:\\.|[^'\\\n])+'/g, blank)
    .replaceAll(/^ *#(?:.*\\\n)*.*$/gm, blank)
}

const isType = (head) => /^\s*(?:\w+:\s)?\s*(?:template\s*<.*>\s*)?(?:namespace|class|struct|union|enum)\b/s.test(head)
const isList = (head) => /[=,(]\s*$/.test(head)

/**
 * Returns the first line and the length of each function with more than `most` lines, counted from its opening brace to
 * its closing brace.
 */
export function longFunctions(text, most) {
  const code = withoutLiterals(text)
  const lineAt = (index) => code.slice(0, index).split('\n').length
  const opened = []
  const found = []
  for (const { 0: brace, index } of code.matchAll(/[{}]/g)) {
    if (brace === '{') {
      opened.push(index)
      continue
    }
    const start = opened.pop()
    const lines = lineAt(index) - lineAt(start) + 1
    if (lines <= most) continue
    const [head] = code.slice(0, start).match(/[^;{}]*$/)
    if (!isType(head) && !isList(head)) found.push({ line: lineAt(start), lines })
  }
  return found
}
