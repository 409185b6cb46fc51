// lengths.ts - the lengths of packets that are tried where a path takes less than it should. Pure.

/**
 * Of datagrams with all their headers, in bytes: what every host takes, IPv6's least, Ethernet's, and what tunnels, PPPoE
 * and clouds leave of it; jumbo frames.
 */
const PATH_BYTES = [576, 1024, 1200, 1280, 1400, 1420, 1450, 1492, 1500, 4352, 8896, 9000]

/** The lengths up to the longest, which is the last of them; `overhead` is what stands around a packet. */
export const lengthsUpTo = (longest: number, overhead: number): readonly number[] => [
  ...PATH_BYTES.map((bytes) => bytes - overhead).filter((bytes) => bytes < longest),
  longest,
]

/** The longest of these that passes, where the last one does not, by halves; undefined where none does. */
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
