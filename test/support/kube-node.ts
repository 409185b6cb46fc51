// kube-node.ts - a node of a test's Kubernetes cluster: containerd, kubelet and kube-proxy on a host of a lab, in namespaces of their own.
//
// The node has its own processes, mounts and host name, as a machine has: /etc, /opt, /run and /var are its own, so that a manifest's host
// paths have their usual names. All of its processes end when the first one ends, as at a power failure.

import { spawn, type ChildProcess } from 'node:child_process'
import { appendFileSync, copyFileSync, existsSync, mkdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { ended, execute, output, type Finished } from '../../lab/command.ts'
import type { Host } from '../../lab/lab.ts'
import type { Emulation } from './emulated-node.ts'
import { eventually } from './event.ts'
import { PAUSE } from './image-archive.ts'

export type ProxyMode = 'iptables' | 'nftables'

export interface KubeNode {
  readonly name: string
  readonly host: Host
  readonly proxyMode: ProxyMode
  /** Starts the node's programs, as at a boot. */
  start(): Promise<void>
  /** Ends all processes of the node immediately. Its files stay, except those in /run. Its devices, routes and firewall rules are gone. */
  powerOff(): Promise<void>
  /** Runs a command with the node's mounts, processes and network. */
  run(command: readonly string[]): Promise<Finished>
  output(command: readonly string[]): Promise<string>
  /** The path, on this machine, of a file of the node. */
  path(file: string): string
  /** Imports images into containerd. */
  load(archives: readonly string[]): Promise<void>
  /** Gives an image another name. */
  tag(image: string, other: string): Promise<void>
  /** Returns the file of a pod's network namespace, as this machine sees it. */
  networkOf(podUid: string): Promise<string>
  close(): Promise<void>
}

interface NodeParts {
  /** The folder with the programs. */
  readonly programs: string
  readonly host: Host
  readonly folder: string
  readonly proxyMode: ProxyMode
  readonly nodeIp: string
  readonly caFile: string
  /** The kubeconfig files. */
  readonly kubelet: string
  readonly proxy: string
  readonly clusterDns: string
  readonly podNetworks: string
  /** Makes the node one of another architecture. */
  readonly emulation?: Emulation | undefined
}

const PLUGINS = ['bridge', 'host-local', 'loopback', 'portmap']
const CONTAINERD = '/run/containerd/containerd.sock'
/**
 * The kernel settings that kubelet wants. They are the whole machine's, so the node gets files in their place; kubelet leaves the machine's
 * own values as they are.
 */
const SETTINGS = {
  'vm/overcommit_memory': 1,
  'vm/panic_on_oom': 0,
  'kernel/panic': 10,
  'kernel/panic_on_oops': 1,
  'kernel/keys/root_maxkeys': 1_000_000,
  'kernel/keys/root_maxbytes': 25_000_000,
}

/** Makes the node's mounts. $1 is the node's folder, $2 its name. SIGCHLD is ignored so that the kernel removes orphans that end. */
const BOOT = `
mount --make-rshared /
hostname "$2"
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock
mount --bind "$1/opt" /opt
mount -t overlay -o "lowerdir=/etc,upperdir=$1/etc,workdir=$1/etc-work" overlay /etc
test -e "$1/booted" || rm -rf /etc/cni  # this machine's podman may have a network
touch "$1/booted"
mount -t overlay -o "lowerdir=/var,upperdir=$1/var,workdir=$1/var-work" overlay /var
for each in lib/containerd lib/kubelet log; do mkdir -p "/var/$each"; mount --bind "$1/$each" "/var/$each"; done
(cd "$1/settings" && find . -type f) | while read -r each; do mount --bind "$1/settings/$each" "/proc/sys/$each"; done
echo '0 2147483647' > /proc/sys/net/ipv4/ping_group_range # systemd sets it, too
trap '' CHLD
echo booted
exec sleep infinity`

/** Removes from a host's network all devices except eth0, the routes except the default route, and the firewall rules. */
const FORGET = `
for each in $(ip -br link | cut -d' ' -f1 | cut -d@ -f1 | grep -vx -e lo -e eth0); do ip link del "$each" 2>/dev/null; done
nft flush ruleset
for family in -4 -6; do
  ip $family route show dev eth0 proto boot | grep -v '^default' | while read -r each; do ip $family route del $each dev eth0; done
done
true`

export function createKubeNode(parts: NodeParts): KubeNode {
  const { host, folder, programs, proxyMode, emulation } = parts
  const { name } = host
  const program = (each: string): string => join(programs, each)
  /** Returns the path of a program that starts containers. */
  const runtime = (each: string): string => join(emulation?.programs ?? programs, each)
  const at = (file: string): string => join(folder, file)
  const folders = 'opt/cni/bin etc etc-work var var-work lib/containerd lib/kubelet log logs settings'.split(' ')
  for (const each of folders) mkdirSync(at(each), { recursive: true })
  for (const plugin of PLUGINS) copyFileSync(program(plugin), at(`opt/cni/bin/${plugin}`))
  for (const [setting, value] of Object.entries(SETTINGS)) {
    mkdirSync(join(at('settings'), setting, '..'), { recursive: true })
    writeFileSync(join(at('settings'), setting), `${value}\n`)
  }
  writeFileSync(at('containerd.toml'), containerdConfig(runtime('runc')))
  writeFileSync(at('kubelet.json'), JSON.stringify(kubeletConfig(parts)))
  writeFileSync(at('proxy.json'), JSON.stringify(proxyConfig(parts)))
  writeFileSync(at('resolv.conf'), 'nameserver 192.0.2.53\n')

  let machine: ChildProcess | undefined
  /** The pid of the node's first process, on this machine. */
  let first = 0
  /** Each promise resolves when a program of the node has ended, and its log has the reason. */
  const running: Promise<unknown>[] = []
  const enter = (): string[] => [
    'nsenter',
    `--target=${first}`,
    '--mount',
    '--uts',
    '--net',
    '--pid',
    'env',
    `PATH=${[...(emulation ? [emulation.programs] : []), programs, process.env['PATH']].join(':')}:/usr/sbin:/sbin`,
  ]
  /** Starts a program of the node. Its output is in a file of the folder logs. */
  function start(words: readonly string[]): ChildProcess {
    const [path = ''] = words
    const log = at(`logs/${path.split('/').at(-1)}.log`)
    const child = spawn('setpriv', ['--pdeathsig', 'KILL', ...enter(), ...words], { stdio: ['ignore', 'pipe', 'pipe'] })
    for (const stream of [child.stdout, child.stderr]) stream.on('data', (data: Buffer) => appendFileSync(log, data))
    child.once('exit', (code, signal) => appendFileSync(log, `ended: ${signal ?? code}\n`))
    running.push(ended(child))
    return child
  }
  const ctr = (...words: string[]): Promise<string> =>
    output([...enter(), runtime('ctr'), '--address', CONTAINERD, '--namespace', 'k8s.io', ...words], {
      timeoutMs: 600_000,
    })
  /** Kills all processes, and removes the containers' cgroups, which the kernel keeps. */
  async function end(): Promise<void> {
    if (machine === undefined) return
    const containers = (await ctr('containers', 'list', '--quiet').catch(() => '')).split('\n').filter(Boolean)
    process.kill(first, 'SIGKILL')
    await Promise.all([ended(machine), ...running.splice(0)])
    machine = undefined
    const script = 'for each; do rmdir /sys/fs/cgroup/*/k8s.io/"$each" /sys/fs/cgroup/k8s.io/"$each"; done 2>/dev/null'
    await execute(['sh', '-c', script, 'sh', ...containers])
  }
  const node: KubeNode = {
    name,
    host,
    proxyMode,
    async start() {
      const outside = ['nsenter', `--mount=/proc/${process.pid}/ns/mnt`]
      const apart = '--mount --uts --pid --fork --kill-child --mount-proc --propagation private'.split(' ')
      machine = host.spawn([...outside, 'unshare', ...apart, 'sh', '-ec', BOOT, 'sh', folder, name])
      let said = ''
      for (const stream of [machine.stdout!, machine.stderr!])
        stream.on('data', (data: Buffer) => (said += data.toString()))
      await eventually(() => {
        if (machine!.exitCode !== null) throw new Error(`${name} does not boot: ${said}`)
        if (!said.includes('booted')) throw new Error(`${name} boots: ${said}`)
      })
      first = Number(readFileSync(`/proc/${machine.pid}/task/${machine.pid}/children`, 'utf8').trim())
      start([runtime('containerd'), '--config', at('containerd.toml')])
      await eventually(() => ctr('version'))
      start([program('kube-proxy'), '--config', at('proxy.json'), '--v', '1'])
      start([
        program('kubelet'),
        '--config',
        at('kubelet.json'),
        '--kubeconfig',
        parts.kubelet,
        '--hostname-override',
        name,
        '--node-ip',
        parts.nodeIp,
        ...(emulation ? ['--node-labels', `kubernetes.io/arch=${emulation.architecture.platform.architecture}`] : []),
        '--v',
        '2',
      ])
    },
    async powerOff() {
      await end()
      await host.output(['sh', '-c', FORGET])
    },
    run: (command) => execute([...enter(), ...command]),
    output: (command) => output([...enter(), ...command]),
    path: (file) => `/proc/${first}/root${file}`,
    async load(archives) {
      for (const archive of archives) await ctr('images', 'import', archive)
    },
    tag: async (image, other) => void (await ctr('images', 'tag', image, other)),
    async networkOf(podUid) {
      const labels = `labels."io.kubernetes.pod.uid"==${podUid},labels."io.cri-containerd.kind"==sandbox`
      for (const id of (await ctr('containers', 'list', '--quiet', labels)).split('\n').filter(Boolean)) {
        const { Spec } = JSON.parse(await ctr('containers', 'info', id)) as {
          Spec: { linux: { namespaces: { type: string; path?: string }[] } }
        }
        const network = Spec.linux.namespaces.find(({ type }) => type === 'network')?.path ?? ''
        const file = node.path(network.replace(/^\/var\/run\//, '/run/'))
        // After a boot a pod may still have its earlier sandbox, whose namespace is gone.
        if (network !== '' && existsSync(file)) return file
      }
      throw new Error(`the pod ${podUid} on ${name} has no network namespace`)
    },
    async close() {
      await end()
      rmSync(folder, { recursive: true, force: true })
    },
  }
  return node
}

const containerdConfig = (runc: string): string => `version = 3
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "${PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Some roots may not lower the score (CAP_SYS_RESOURCE).
  restrict_oom_score_adj = true
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
  BinaryName = "${runc}"
`

const kubeletConfig = ({ folder, caFile, clusterDns }: NodeParts): object => ({
  apiVersion: 'kubelet.config.k8s.io/v1beta1',
  kind: 'KubeletConfiguration',
  authentication: { anonymous: { enabled: false }, webhook: { enabled: true }, x509: { clientCAFile: caFile } },
  authorization: { mode: 'Webhook' },
  containerRuntimeEndpoint: `unix://${CONTAINERD}`,
  clusterDomain: 'cluster.local',
  clusterDNS: [clusterDns],
  resolvConf: join(folder, 'resolv.conf'),
  cgroupDriver: 'cgroupfs',
  // The nodes share this machine's cgroups, so that none of them may limit the machine. Since 1.35 kubelet refuses cgroups of version 1
  // unless the following line allows them.
  cgroupsPerQOS: false,
  enforceNodeAllocatable: [],
  failCgroupV1: false,
  failSwapOn: false,
  evictionHard: { 'memory.available': '1Mi' },
  imageGCHighThresholdPercent: 100,
  imageGCLowThresholdPercent: 99,
  localStorageCapacityIsolation: false,
  // With the default, a kubelet that just lost its watch gives a new pod the previous ConfigMap.
  configMapAndSecretChangeDetectionStrategy: 'Get',
  syncFrequency: '10s',
})

const proxyConfig = ({ host, proxy, proxyMode, podNetworks }: NodeParts): object => ({
  apiVersion: 'kubeproxy.config.k8s.io/v1alpha1',
  kind: 'KubeProxyConfiguration',
  hostnameOverride: host.name,
  mode: proxyMode,
  clusterCIDR: podNetworks,
  clientConnection: { kubeconfig: proxy },
  bindAddress: '0.0.0.0',
  // The size of the connection table is the whole machine's.
  conntrack: { maxPerCore: 0, min: 0, tcpEstablishedTimeout: '0s', tcpCloseWaitTimeout: '0s' },
})
