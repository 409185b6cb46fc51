// causes.ts - collects the errors that the weftds of a lab (a set of simulated hosts) logged, and lists each error
// once.

const MOST = 3

/**
 * Returns the errors in the logs of several weftds, or the warnings if there are no errors. Errors that most weftds
 * logged come first.
 */
export function causesIn(logs: readonly (readonly string[])[]): string[] {
  for (const level of ['E', 'W']) {
    const times = new Map<string, number>()
    for (const lines of logs) {
      const said = lines.flatMap((line) => new RegExp(`^${level}\\d{4} [^\\]]*\\] (.*)$`).exec(line)?.[1] ?? [])
      for (const text of new Set(said)) times.set(text, (times.get(text) ?? 0) + 1)
    }
    if (times.size > 0)
      return [...times]
        .toSorted(([, one], [, other]) => other - one)
        .slice(0, MOST)
        .map(([text]) => text)
  }
  return []
}
