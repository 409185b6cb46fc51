// lengths.ts - the packet lengths that weft probes if a path does not carry full-size packets. Pure.

/**
 * Common path MTUs in bytes: the minimum that hosts must accept (576) and the minimum of IPv6 (1280), Ethernet (1500),
 * the MTUs inside tunnels, PPPoE and clouds, and jumbo frames.
 */
const PATH_BYTES = [576, 1024, 1200, 1280, 1400, 1420, 1450, 1492, 1500, 4352, 8896, 9000]

/**
 * Lists the packet lengths in bytes that weft probes, in ascending order up to `longest`. `overhead` is the total
 * length of the outer headers in bytes.
 */
export const lengthsUpTo = (longest: number, overhead: number): readonly number[] => [
  ...PATH_BYTES.map((bytes) => bytes - overhead).filter((bytes) => bytes < longest),
  longest,
]

/**
 * Finds by binary search the longest of the packet lengths `lengths` for which `passes` resolves with true; undefined
 * if there is none. The caller must already know that `passes` resolves with false for the last length.
 */
export async function longestOf(
  lengths: readonly number[],
  passes: (bytes: number) => Promise<boolean>,
): Promise<number | undefined> {
  let [good, bad] = [-1, lengths.length - 1]
  while (bad - good > 1) {
    const at = (good + bad) >> 1
    if (await passes(lengths[at] ?? 0)) good = at
    else bad = at
  }
  return lengths[good]
}
