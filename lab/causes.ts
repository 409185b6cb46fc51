// causes.ts - what the daemons of a lab say is wrong, each cause once.

/** At most this number of causes is shown. */
const MOST = 3

/** The errors in the lines of several daemons, else the warnings: without klog's header, and each once, the one of most daemons first. */
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
