// format.ts - times, sizes and rates in a person's units. Pure.

const scaled = (value: number, step: number, units: readonly string[]): string => {
  let [rest, unit] = [value, 0]
  for (; rest >= step && unit < units.length - 1; unit++) rest /= step
  return `${unit === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${units[unit]}`
}

/** `1.2 Gbit/s`, of bytes a second. */
export const bitRate = (bytesPerSecond: number): string =>
  scaled(bytesPerSecond * 8, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'])

/** `1.2 MiB` */
export const bytes = (count: number): string => scaled(count, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'])

/** `12.3 k` */
export const short = (count: number): string => scaled(count, 1000, ['', 'k', 'M', 'G', 'T']).trimEnd()

/** `4.5 s`, `3 min`, `2 h` */
export function duration(seconds: number): string {
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`
  if (seconds < 120) return `${Math.round(seconds)} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`
}

export const milliseconds = (ms: number): string => `${ms >= 100 ? Math.round(ms) : ms.toPrecision(2)} ms`

/** `1 peer`, `2 peers`, `10,000 peers` */
export const count = (number: number, what: string): string =>
  `${number.toLocaleString('en')} ${what}${number === 1 ? '' : 's'}`

/** `100%` only of what is whole: never rounded up to it. */
export const percent = (part: number): string => (part === 1 ? '100%' : `${Math.floor(part * 1000) / 10}%`)

/** What is not known is a dash. */
export const or = <T>(value: T | null | undefined, text: (value: T) => string): string =>
  value === null || value === undefined ? '–' : text(value)

/** `rx_drop_spoofed_source` in words: `in: spoofed source`. */
export function dropReason(counter: string): string {
  const [, way, reason = ''] = /^(rx|tx)_drop_(.*)$/.exec(counter) ?? []
  return way === undefined ? counter : `${way === 'rx' ? 'in' : 'out'}: ${reason.replaceAll('_', ' ')}`
}
