// host-name.ts - the name of a host as it stands beside its lease: `{"Hostname":"host1","ID":"..."}` under its public IP. Pure.
//
// It is others' text: whoever shows it escapes it (base/text.ts). flanneld writes none.

/** DNS has no longer ones (RFC 1035, section 2.3.4), nor has Kubernetes; Linux takes 64 bytes (sethostname(2)). */
const LONGEST_NAME = 253
/** The longest text that is read at all. */
const LONGEST_TEXT = 65_536

export const claimText = (hostname: string, id: string): string => JSON.stringify({ Hostname: hostname, ID: id })

/** A name that is longer than names can be loses its end. */
export const shortened = (name: string): string =>
  name.length > LONGEST_NAME ? `${name.slice(0, LONGEST_NAME - 1)}…` : name

/** The name in a host's claim; undefined when it has none. */
export function hostNameIn(claim: string): string | undefined {
  if (claim.length > LONGEST_TEXT) return undefined
  try {
    const { Hostname: name } = JSON.parse(claim) as { Hostname?: unknown }
    return typeof name === 'string' && name.trim() !== '' ? shortened(name.trim()) : undefined
  } catch {
    return undefined // also of null, which has no members
  }
}
