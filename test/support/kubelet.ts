// kubelet.ts - a real kubelet on a host of a lab, with its own containerd. Its pods are files (static pods), because there is no API
// server. kubelet starts, probes and ends them with the same code.

import type { ChildProcess } from 'node:child_process'
import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { vi } from 'vitest'
import { ended, output } from '../../lab/command.ts'
import { EVENT_MS, type Host } from '../../lab/lab.ts'
import { PAUSE, writePause } from './image-archive.ts'
import type { KubeObject } from './kube-manifest.ts'

const PORT = 10255

interface ContainerStatus {
  readonly name: string
  readonly ready: boolean
  readonly started?: boolean
  readonly restartCount: number
  readonly containerID?: string
  readonly state: { readonly waiting?: { readonly reason: string }; readonly running?: object }
}
interface PodStatus {
  readonly phase: string
  readonly reason?: string
  readonly message?: string
  readonly conditions?: readonly {
    readonly type: string
    readonly status: string
    readonly lastTransitionTime: string
  }[]
  readonly containerStatuses?: readonly ContainerStatus[]
}

export interface Kubelet {
  readonly versions: string
  /** Starts a pod, which replaces a pod of the same name. */
  create(pod: KubeObject): void
  /** Makes kubelet end the pod, as after a deletion through the API. */
  remove(name: string): void
  /** Undefined if the pod does not exist any more. */
  status(name: string): Promise<PodStatus | undefined>
  /** Resolves when kubelet reports the pod ready. */
  ready(name: string): Promise<void>
  /** Resolves when no container of the pod runs any more. */
  gone(name: string): Promise<void>
  /** Returns the pid, on the host, of the first process of the pod's first container. */
  pid(name: string): Promise<number>
  /** Returns kubelet's own count of a pod's probes of this type with this result. */
  probes(name: string, type: 'Startup' | 'Readiness', result: 'successful' | 'failed'): Promise<number>
  /** Returns the log of the pod's containers. */
  log(name: string): Promise<string>
  close(): Promise<void>
}

/** Waits with long pauses, because each container takes seconds, and frequent checks would delay it. */
export const soon = <T>(check: () => T | Promise<T>): Promise<T> =>
  vi.waitFor(check, { timeout: 5 * EVENT_MS, interval: 500 })

export const isReady = (status: PodStatus | undefined): boolean =>
  status?.conditions?.some(({ type, status: is }) => type === 'Ready' && is === 'True') ?? false

/** `program` is kubelet's path; `archives` are images as `docker save` writes them. */
export async function startKubelet(
  program: string,
  host: Host,
  folder: string,
  archives: readonly string[],
): Promise<Kubelet> {
  const at = (name: string): string => join(folder, name)
  for (const name of ['pods', 'containerd', 'kubelet']) mkdirSync(at(name), { recursive: true })
  const address = at('containerd.sock')
  writeFileSync(
    at('containerd.toml'),
    [
      'version = 2',
      `root = ${JSON.stringify(at('containerd/root'))}`,
      `state = ${JSON.stringify(at('containerd/state'))}`,
      '[grpc]',
      `  address = ${JSON.stringify(address)}`,
      '[plugins."io.containerd.grpc.v1.cri"]',
      `  sandbox_image = "${PAUSE}"`,
      // Some roots may not lower the score (CAP_SYS_RESOURCE).
      '  restrict_oom_score_adj = true',
      '  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]',
      '    runtime_type = "io.containerd.runc.v2"',
      '  [plugins."io.containerd.grpc.v1.cri".cni]',
      `    bin_dir = ${JSON.stringify(at('cni-bin'))}`,
      `    conf_dir = ${JSON.stringify(at('cni-conf'))}`,
      '',
    ].join('\n'),
  )
  writeFileSync(
    at('kubelet.json'),
    JSON.stringify({
      apiVersion: 'kubelet.config.k8s.io/v1beta1',
      kind: 'KubeletConfiguration',
      staticPodPath: at('pods'),
      readOnlyPort: PORT,
      failSwapOn: false,
      cgroupDriver: 'cgroupfs',
      cgroupsPerQOS: false,
      enforceNodeAllocatable: [],
      makeIPTablesUtilChains: false,
      authentication: { anonymous: { enabled: true }, webhook: { enabled: false } },
      authorization: { mode: 'AlwaysAllow' },
      evictionHard: { 'memory.available': '1Mi' },
      enableControllerAttachDetach: false,
      registerNode: false,
    }),
  )
  // The lab's `ip netns exec` mounts a /sys without cgroups.
  const outside = ['nsenter', `--mount=/proc/${process.pid}/ns/mnt`]
  const printed: string[] = []
  function start(words: readonly string[]): ChildProcess {
    const child = host.spawn([...outside, ...words])
    child.stdout!.resume()
    child.stderr!.setEncoding('utf8').on('data', (text: string) => {
      printed.push(text)
      if (printed.length > 500) printed.splice(0, 100)
    })
    return child
  }
  /** Returns the last errors that kubelet has logged. */
  const errors = (): string => (printed.join('').match(/^[EF]\d.*$/gm) ?? []).slice(-10).join('\n')
  const ctr = (...words: string[]): Promise<string> =>
    output(['ctr', '--address', address, '--namespace', 'k8s.io', ...words], { timeoutMs: 600_000 })
  const containerd = start(['containerd', '--config', at('containerd.toml')])
  await soon(() => ctr('version'))
  for (const archive of [await writePause(at('pause')), ...archives]) await ctr('images', 'import', archive)

  const kubelet = start([
    program,
    '--config',
    at('kubelet.json'),
    '--root-dir',
    at('kubelet'),
    '--hostname-override',
    host.name,
    '--container-runtime',
    'remote',
    '--container-runtime-endpoint',
    `unix://${address}`,
    '--cert-dir',
    at('certs'),
    '--v',
    '2',
  ])
  const ask = (path: string): Promise<string> =>
    host.output(['curl', '--silent', '--fail', `http://127.0.0.1:${PORT}${path}`])
  async function pods(): Promise<readonly (KubeObject & { readonly status: PodStatus })[]> {
    const said = await ask('/pods')
    return (JSON.parse(said) as { items: (KubeObject & { status: PodStatus })[] | null }).items ?? []
  }
  await soon(async () => {
    if (kubelet.exitCode !== null) throw new Error(`kubelet ended: ${errors()}`)
    await pods()
  })

  const nameOf = (name: string): string => `${name}-${host.name}`
  /** kubelet writes logs here, whatever its folder is. */
  const logsOf = (name: string): string => `/var/log/pods/*_${nameOf(name)}_*`
  const created = new Set<string>()
  const status = async (name: string): Promise<PodStatus | undefined> =>
    (await pods()).find(({ metadata }) => metadata.name === nameOf(name))?.status
  /** Returns the ids of a pod's running containers, including its sandbox. */
  async function running(name: string): Promise<string[]> {
    const labelled = `labels."io.kubernetes.pod.name"==${nameOf(name)}`
    const [ids, tasks] = [await ctr('containers', 'list', '--quiet', labelled), await ctr('tasks', 'list')]
    return ids.split('\n').filter((id) => id !== '' && new RegExp(`^${id}\\s+\\d+\\s+RUNNING`, 'm').test(tasks))
  }
  return {
    versions: `${(await output([program, '--version'])).trim()}, ${(await output(['containerd', '--version'])).trim()}`,
    create(pod) {
      created.add(pod.metadata.name)
      writeFileSync(at('next.json'), JSON.stringify(pod))
      renameSync(at('next.json'), join(at('pods'), `${pod.metadata.name}.json`))
    },
    remove: (name) => rmSync(join(at('pods'), `${name}.json`)),
    status,
    async ready(name) {
      await soon(async () => {
        const is = await status(name)
        if (!isReady(is)) throw new Error(`${name} is not ready: ${JSON.stringify(is)}\n${errors()}`)
      })
    },
    async gone(name) {
      await soon(async () => {
        if ((await running(name)).length > 0) throw new Error(`${name} still runs`)
      })
    },
    async pid(name) {
      const [container] = (await status(name))?.containerStatuses ?? []
      const id = container?.containerID?.replace(/^containerd:\/\//, '')
      const tasks = await ctr('tasks', 'list')
      return Number(new RegExp(`^${id}\\s+(\\d+)\\s+RUNNING`, 'm').exec(tasks)?.[1])
    },
    async probes(name, type, result) {
      const counts = (await ask('/metrics/probes'))
        .split('\n')
        .filter((line) =>
          [`prober_probe_total{`, `pod="${nameOf(name)}"`, `probe_type="${type}"`, `result="${result}"`].every((part) =>
            line.includes(part),
          ),
        )
      return counts.reduce((sum, line) => sum + Number(line.slice(line.lastIndexOf(' '))), 0)
    },
    log: (name) => output(['sh', '-c', `cat ${logsOf(name)}/*/*.log`]),
    async close() {
      kubelet.kill('SIGTERM')
      await ended(kubelet)
      for (const id of (await ctr('tasks', 'list', '--quiet')).split('\n').filter(Boolean))
        await ctr('tasks', 'kill', '--signal', 'SIGKILL', '--all', id).catch(() => {})
      containerd.kill('SIGTERM')
      await ended(containerd)
      for (const name of created) await output(['sh', '-c', `rm -rf ${logsOf(name)}`])
      await output([
        'sh',
        '-c',
        'for at in $(cut -d" " -f2 /proc/mounts | grep "^$0/" | sort -r); do umount -l $at; done',
        folder,
      ])
    },
  }
}
