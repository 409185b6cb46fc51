// pure-files.ts - the files of src/ that read and write nothing: no clock, no I/O. architecture.test.ts holds them to it, and mutants
// are made of them.

/** Below src/; a name that ends with a slash stands for what is in the folder. */
export const PURE: readonly string[] = [
  'errors.ts',
  'kinds.ts',
  'text.ts',
  'go-flags.ts',
  'options.ts',
  'net/',
  'config/',
  'host/iptables.ts',
  'store/store.ts',
  'lease/lease.ts',
  'lease/allocate.ts',
  'lease/decode.ts',
  'lease/fail-static.ts',
  'lease/subnet-manager.ts',
  'lease/store-manager.ts',
  'kube/node-lease.ts',
  'dataplane/peers.ts',
  'dataplane/filter.ts',
  'dataplane/encapsulation.ts',
  'dataplane/packet.ts',
  'dataplane/path-search.ts',
  'dataplane/bucket.ts',
  'dataplane/drops.ts',
  'restart/open-path.ts',
  'cleanup/remains.ts',
  'cleanup/flannel-rules.ts',
  'firewall/rules.ts',
  'cli/manual.ts',
  'cli/packet-text.ts',
  'cli/pcapng.ts',
  'doctor/checks.ts',
  'doctor/explain.ts',
  'doctor/findings.ts',
  'doctor/firewall.ts',
  'doctor/filter-walk.ts',
  'measure/conversation.ts',
  'measure/plan.ts',
  'measure/result.ts',
  'status/audience.ts',
  'status/snapshot.ts',
  'status/probes.ts',
  'status/status.ts',
  'status/drops.ts',
  'status/threads.ts',
  'page/format.ts',
  'page/history.ts',
  'page/model.ts',
]

/** Whether a file of src/, named by its path below it, is one of them. */
export function isPure(file: string): boolean {
  return PURE.some((path) => file === path || (path.endsWith('/') && file.startsWith(path)))
}
