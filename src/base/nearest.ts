// nearest.ts - finds the known word that a mistyped word probably means. Pure.

/**
 * The maximum number of letters of a word for which a similar word is searched. No flag or configuration key is longer,
 * and the time of the search grows with the square of the length.
 */
const LONGEST = 64

/**
 * Returns the word of `known` with the smallest edit distance from `word`, ignoring case; undefined if that distance is
 * more than a third of the length of the longer word. An edit inserts, deletes, changes or swaps letters (restricted
 * Damerau-Levenshtein distance).
 */
export function nearest(word: string, known: Iterable<string>): string | undefined {
  if (word.length > LONGEST) return undefined
  let found: string | undefined
  let least = Infinity
  for (const one of known) {
    const most = Math.max(1, Math.floor(Math.max(word.length, one.length) / 3))
    const distance = distanceOf(word.toLowerCase(), one.toLowerCase())
    if (distance > most || distance >= least) continue
    found = one
    least = distance
  }
  return found
}

function distanceOf(a: string, b: string): number {
  let [before, row] = [[] as number[], Array.from({ length: b.length + 1 }, (_, at) => at)]
  for (let i = 1; i <= a.length; i++) {
    const next = [i]
    for (let j = 1; j <= b.length; j++) {
      const changed = (row[j - 1] ?? 0) + (a[i - 1] === b[j - 1] ? 0 : 1)
      // Before the first letter a word has undefined, which equals no letter.
      const isExchanged = a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      const exchanged = isExchanged ? (before[j - 2] ?? 0) + 1 : Infinity
      next.push(Math.min(changed, exchanged, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    before = row
    row = next
  }
  return row[b.length] ?? 0
}

/**
 * Returns a hint such as `; did you mean --port?` with the most similar word of `known`, preceded by `head`, such as
 * `--`. Returns an empty text if no known word is similar.
 */
export function meant(word: string, known: Iterable<string>, head = ''): string {
  const one = nearest(word, known)
  return one === undefined ? '' : `; did you mean ${head}${one}?`
}
