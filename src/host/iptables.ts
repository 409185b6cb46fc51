// iptables.ts - what an iptables can do, by its version.

/** iptables-restore waits for its lock, for as long as another program has it; whoever runs it must be as patient. */
export const WAIT = ['--wait'] as const

/**
 * True when the rules are the kernel's nf_tables; otherwise, and before there was a choice, they are of the legacy
 * kind. `text` is what --version prints.
 */
export const isNfTables = (text: string): boolean => text.includes('nf_tables')

/** True when this iptables knows --random-fully and iptables-restore --wait: 1.6.2 or later. `text` is what --version prints. */
export function isIptables162(text: string): boolean {
  const [major = 0, minor = 0, patch = 0] = (/v(\d+)\.(\d+)\.(\d+)/.exec(text) ?? []).slice(1).map(Number)
  return major !== 1 ? major > 1 : minor !== 6 ? minor > 6 : patch >= 2
}
