// iptables.ts - detects the abilities of iptables from its version.

/** Makes iptables-restore wait for its lock without a limit, so the caller must not set a time limit either. */
export const WAIT = ['--wait'] as const

/** True if this iptables uses the kernel's nf_tables instead of the legacy tables. `text` is the output of --version. */
export const isNfTables = (text: string): boolean => text.includes('nf_tables')

/** True for iptables 1.6.2 or later, which has --random-fully and iptables-restore --wait. `text` is the output of --version. */
export function isIptables162(text: string): boolean {
  const [major = 0, minor = 0, patch = 0] = (/v(\d+)\.(\d+)\.(\d+)/.exec(text) ?? []).slice(1).map(Number)
  return major !== 1 ? major > 1 : minor !== 6 ? minor > 6 : patch >= 2
}
