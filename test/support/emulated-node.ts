// emulated-node.ts - lets a node of the tests' Kubernetes cluster act as a node of another architecture.
//
// The node's containerd is a program of that architecture, so containerd itself chooses the image of the architecture from an index.
// qemu-user runs containerd, and each program of that architecture in a container. kubelet, kube-proxy, runc, containerd's shim and the
// CNI plugins are this machine's own programs; kubelet gets the architecture as the label that the manifest selects.
//
// qemu-user has no sockets of NETLINK_NETFILTER, so the programs of iptables in weft's container are replaced by this machine's. qemu-user
// itself makes system calls of this machine, so the filter of system calls gets this machine's architecture.

import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmodSync, copyFileSync, mkdirSync, readdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ended, output } from '../../lab/command.ts'
import { ARCHITECTURES } from '../../scripts/release/architectures.mjs'
import { imageBase } from '../../scripts/release/image-base.mjs'

type Architecture = (typeof ARCHITECTURES)[number]

export interface Emulation {
  readonly architecture: Architecture
  /** The folder with containerd and ctr for the architecture, and with a runc that prepares containers for qemu-user. */
  readonly programs: string
  /** Ends the emulation of programs that are started later. */
  close(): Promise<void>
}

const BINFMT = '/proc/sys/fs/binfmt_misc'
/** The bytes 0 to 19 of an ELF file for arm64, and the bits of these bytes that are compared (`binfmt_misc` of the kernel's manual). */
const ARM64 = {
  magic: String.raw`\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00`,
  mask: String.raw`\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff`,
}
/** The programs of iptables in weft's image. Each of them acts as the program by whose name it is started. */
const IPTABLES = ['xtables-nft-multi', 'xtables-legacy-multi']

/** Returns a script that runs this machine's program of iptables in the container. The kernel passes the script's path as $0. */
const iptablesScript = (program: string, gnu: string): string => `#!/busybox sh
libraries=/native/usr/lib/${gnu}
XTABLES_LIBDIR=$libraries/xtables exec $libraries/ld-linux-x86-64.so.2 \\
  --library-path "$libraries" --argv0 "$0" /native/usr/sbin/${program} "$@"
`

/** Returns a script that changes the configuration of a new container, and then runs the real runc. */
function runcScript(runc: string, folder: string, native: string): string {
  const bind = (destination: string, source: string): object => ({
    destination,
    source,
    type: 'bind',
    options: ['bind', 'ro'],
  })
  const mounts = [
    bind('/native', native),
    bind('/busybox', '/bin/busybox'),
    ...IPTABLES.map((name) => bind(`/usr/sbin/${name}`, join(folder, name))),
  ]
  writeFileSync(join(folder, 'mounts.json'), JSON.stringify(mounts))
  const calls = { names: ['arch_prctl'], action: 'SCMP_ACT_ALLOW' }
  return `#!/bin/sh
set -e
last= bundle=
for word; do
  if [ "$last" = --bundle ]; then bundle=$word; fi
  last=$word
done
if [ -n "$bundle" ]; then
  config=$bundle/config.json
  test -e "$bundle/rootfs/usr/sbin/${IPTABLES[0]}" && mounts=${join(folder, 'mounts.json')} || mounts=/dev/null
  jq --slurpfile mounts "$mounts" '.mounts += ($mounts[0] // [])
    | if .linux.seccomp then .linux.seccomp.architectures = ["SCMP_ARCH_X86_64"]
        | .linux.seccomp.syscalls += [${JSON.stringify(calls)}] else . end' "$config" >"$config.new"
  mv "$config.new" "$config"
fi
exec ${runc} "$@"
`
}

/**
 * Lets this machine run programs of arm64, and returns the programs of an emulated node.
 * @param programs The folder of the cluster's programs, whose folder `arm64` has containerd.
 */
export async function emulateArm64(folder: string, programs: string): Promise<Emulation> {
  const find = (debian: string): Architecture => ARCHITECTURES.find((each) => each.debian === debian)!
  const [architecture, own] = [find('arm64'), find('amd64')]
  mkdirSync(folder, { recursive: true })
  const foreign = readdirSync(join(programs, 'arm64'))
  for (const name of foreign) copyFileSync(join(programs, 'arm64', name), join(folder, name))
  const scripts = {
    runc: runcScript(join(programs, 'runc'), folder, imageBase(own)),
    ...Object.fromEntries(IPTABLES.map((name) => [name, iptablesScript(name, own.gnu)])),
  }
  for (const [name, text] of Object.entries(scripts)) writeFileSync(join(folder, name), text)
  for (const name of [...foreign, ...Object.keys(scripts)]) chmodSync(join(folder, name), 0o755)

  const emulator = (await output(['sh', '-c', 'command -v "$0"', architecture.qemu!])).trim()
  return { architecture, programs: folder, close: await runForeign(emulator) }
}

/**
 * Lets the kernel run programs of arm64 with the emulator. Returns a function that ends this. The end of this process ends it, too.
 * F: the kernel opens the emulator now, so that containers need no file of it. P: the emulated program keeps its argv[0].
 */
async function runForeign(emulator: string): Promise<() => Promise<void>> {
  const name = `weft-${process.pid}`
  const script = [
    `mount -t binfmt_misc none ${BINFMT}`,
    `printf %s ':${name}:M::${ARM64.magic}:${ARM64.mask}:${emulator}:PF' >${BINFMT}/register`,
    'echo registered',
    'cat >/dev/null', // Since Linux 6.7 the entry ends with the last mount, so that the process has to wait.
    `echo -1 >${BINFMT}/${name}`,
  ]
  const child = spawn('unshare', ['--mount', 'sh', '-ec', script.join('\n')], { stdio: ['pipe', 'pipe', 'inherit'] })
  await Promise.race([
    once(child.stdout, 'data'),
    ended(child).then(() => Promise.reject(new Error(`binfmt_misc does not accept ${emulator}`))),
  ])
  return async () => {
    child.stdin.end()
    await ended(child)
  }
}
