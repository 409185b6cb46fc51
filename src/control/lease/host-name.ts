// host-name.ts - encodes and decodes a host's name, which the host's weftd stores next to the leases, under the host's
// public IP: `{"Hostname":"host1","ID":"..."}`. flanneld does not store a name. Pure.
//
// The name comes from another host, so a caller that prints the name must escape it (base/text.ts).

/**
 * The maximum length of a host's name in characters, as in DNS (RFC 1035, section 2.3.4) and Kubernetes. Linux allows
 * only 64 bytes (sethostname(2)).
 */
const LONGEST_NAME = 253
/**
 * The maximum number of characters of the JSON text that has a host's name. weftd ignores a longer text, because any
 * host can write a text of any length.
 */
const LONGEST_TEXT = 65_536

export const claimText = (hostname: string, id: string): string => JSON.stringify({ Hostname: hostname, ID: id })

export const shortened = (name: string): string =>
  name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name

/**
 * Returns the host's name from `claim`, JSON text that the host wrote into the store. Returns undefined if the text has
 * no name.
 */
export function hostNameIn(claim: string): string | undefined {
  if (claim.length > LONGEST_TEXT) return undefined
  try {
    const { Hostname: name } = JSON.parse(claim) as { Hostname?: unknown }
    return typeof name === 'string' && name.trim() !== '' ? shortened(name.trim()) : undefined
  } catch {
    return undefined // `null` has no members, so it ends here too
  }
}
