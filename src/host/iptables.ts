// iptables.ts - finds out from the version of iptables which options it has, and which kernel interface it uses.

/**
 * The option by which iptables-restore waits for its lock without a limit. A caller that uses this option must run the
 * command without a time limit.
 */
export const WAIT = ['--wait'] as const

/**
 * Returns true if iptables uses the kernel's nf_tables, and false if it uses the legacy tables. `text` is the output of
 * `iptables --version`.
 */
export const isNfTables = (text: string): boolean => text.includes('nf_tables')

/**
 * Returns true for iptables 1.6.2 or later, which has the option --random-fully, and whose iptables-restore has --wait.
 * `text` is the output of `iptables --version`.
 */
export function isIptables162(text: string): boolean {
  const [major = 0, minor = 0, patch = 0] = (/v(\d+)\.(\d+)\.(\d+)/.exec(text) ?? []).slice(1).map(Number)
  return major !== 1 ? major > 1 : minor !== 6 ? minor > 6 : patch >= 2
}
