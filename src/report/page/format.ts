// format.ts - formats times, sizes and rates for people. Pure.

const scaled = (value: number, step: number, units: readonly string[]): string => {
  let [rest, unit] = [value, 0]
  for (; rest >= step && unit < units.length - 1; unit++) rest /= step
  return `${unit === 0 || rest >= 100 ? Math.round(rest) : rest.toFixed(1)} ${units[unit]}`
}

/** Formats bytes per second as bits per second: `1.2 Gbit/s`. */
export const bitRate = (bytesPerSecond: number): string =>
  scaled(bytesPerSecond * 8, 1000, ['bit/s', 'kbit/s', 'Mbit/s', 'Gbit/s', 'Tbit/s'])

/** Formats a number of bytes: `1.2 MiB`. */
export const bytes = (count: number): string => scaled(count, 1024, ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'])

/** Formats a large number: `12.3 k`. */
export const short = (count: number): string => scaled(count, 1000, ['', 'k', 'M', 'G', 'T']).trimEnd()

/** Formats a duration: `4.5 s`, `3 min`, `2 h`. */
export function duration(seconds: number): string {
  if (seconds < 10) return `${Math.round(seconds * 10) / 10} s`
  if (seconds < 120) return `${Math.round(seconds)} s`
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} days`
}

export const milliseconds = (ms: number): string => `${ms >= 99.5 ? Math.round(ms) : ms.toPrecision(2)} ms`

/** Formats a number with a noun: `1 peer`, `2 peers`, `10,000 peers`. */
export const count = (number: number, what: string): string =>
  `${number.toLocaleString('en')} ${what}${number === 1 ? '' : 's'}`

/** Formats a fraction as a percentage, rounded down, so that `100%` appears only for exactly 1. */
export const percent = (part: number): string => `${Math.floor(part * 1000) / 10}%`

const two = (value: number): string => String(value).padStart(2, '0')
/** Formats the local time of day, as the charts do: `14:05:09`. */
export function clockText(at: Date): string {
  return [at.getHours(), at.getMinutes(), at.getSeconds()].map(two).join(':')
}
/** Formats the local date and time: `2026-11-23 14:05:09`. */
export function dayText(at: Date): string {
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${clockText(at)}`
}

/** Returns the labels of a chart's axis. If consecutive labels are equal, shows only the first of them. */
export const labelsOf = (splits: readonly number[], text: (value: number) => string): string[] =>
  splits.map((value, at) => {
    const before = splits[at - 1]
    return before !== undefined && text(before) === text(value) ? '' : text(value)
  })

/** Formats a value, or returns a dash for an unknown value. */
export const or = <T>(value: T | null | undefined, text: (value: T) => string): string =>
  value === null || value === undefined ? '–' : text(value)

/** Formats the name of a drop counter: `rx_drop_spoofed_source` becomes `in: spoofed source`. */
export function dropReason(counter: string): string {
  const [, way, reason = ''] = /^(rx|tx)_drop_(.*)$/.exec(counter) ?? []
  return way === undefined ? counter : `${way === 'rx' ? 'in' : 'out'}: ${reason.replaceAll('_', ' ')}`
}

/**
 * Joins the IPv4 and the IPv6 text of a value. In an IPv6-only network both texts are equal, so the result has the text
 * once.
 */
export const bothOf = (first: string, ipv6: string | null): string =>
  ipv6 === null || ipv6 === first ? first : `${first} and ${ipv6}`
