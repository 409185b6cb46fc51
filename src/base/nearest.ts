// nearest.ts - the known word that a mistyped one was meant to be. Pure.

/** Nobody's key or flag is longer, and the time grows as the square. */
const LONGEST = 64

/**
 * The known word that `word` becomes by the fewest letters put in, left out, changed or exchanged with the next one (a restricted
 * Damerau-Levenshtein distance), in any case; undefined where that is more than a third of its letters.
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
      const isExchanged = i > 1 && j > 1 && a[i - 1] === b[j - 2] && a[i - 2] === b[j - 1]
      const exchanged = isExchanged ? (before[j - 2] ?? 0) + 1 : Infinity
      next.push(Math.min(changed, exchanged, (row[j] ?? 0) + 1, (next[j - 1] ?? 0) + 1))
    }
    before = row
    row = next
  }
  return row[b.length] ?? 0
}

/** `; did you mean Port?`, or nothing; `head` is shown before the word. */
export function meant(word: string, known: Iterable<string>, head = ''): string {
  const one = nearest(word, known)
  return one === undefined ? '' : `; did you mean ${head}${one}?`
}
