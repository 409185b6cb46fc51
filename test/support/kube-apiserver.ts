// kube-apiserver.ts - a real kube-apiserver with its own etcd and with RBAC; scripts/kube-apiserver.mjs builds the program.

import { spawn, type ChildProcess } from 'node:child_process'
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { ended, output } from '../../lab/command.ts'
import { startEtcd, type Etcd } from '../../lab/etcd.ts'
import { ADMIN_TOKEN, kubeAdmin, makePki, WEFT_TOKEN, WEFT_USER, type KubeApi } from './kube-admin.ts'
import { manifestObjects, type KubeObject } from './kube-manifest.ts'

/** The path of the program; empty unless the real server is requested. */
export const KUBE_APISERVER = process.env['WEFT_KUBE_APISERVER'] ?? ''

export interface RealKubeApi extends KubeApi {
  readonly etcd: Etcd
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as { port: number }
  await new Promise((resolve) => server.close(resolve))
  return port
}

export async function startKubeApiserver(): Promise<RealKubeApi> {
  const folder = mkdtempSync(join(tmpdir(), 'weft-kube-'))
  const file = (name: string): string => join(folder, name)
  const etcd = await startEtcd()
  const pki = await makePki(file('pki'))
  await output(['openssl', 'genrsa', '-out', file('sa.key'), '2048'])
  await output(['openssl', 'rsa', '-in', file('sa.key'), '-pubout', '-out', file('sa.pub')])
  writeFileSync(
    file('tokens'),
    `${ADMIN_TOKEN},admin,admin,"system:masters"\n` +
      `${WEFT_TOKEN},${WEFT_USER},weft,"system:serviceaccounts,system:serviceaccounts:kube-flannel"\n`,
  )
  writeFileSync(
    file('audit.json'),
    JSON.stringify({
      apiVersion: 'audit.k8s.io/v1',
      kind: 'Policy',
      omitStages: ['RequestReceived'],
      rules: [{ level: 'Metadata', users: [WEFT_USER] }, { level: 'None' }],
    }),
  )
  const port = await freePort()
  let child: ChildProcess
  const admin = kubeAdmin(() => api)
  const api: RealKubeApi = {
    url: `https://127.0.0.1:${port}`,
    caFile: pki.caFile,
    admin,
    etcd,
    async start() {
      child = spawn(
        'setpriv',
        [
          '--pdeathsig',
          'KILL',
          KUBE_APISERVER,
          '--etcd-servers',
          etcd.endpoint,
          '--secure-port',
          String(port),
          '--bind-address',
          '127.0.0.1',
          '--tls-cert-file',
          pki.certFile,
          '--tls-private-key-file',
          pki.keyFile,
          '--cert-dir',
          file('certs'),
          '--service-account-issuer',
          'https://kubernetes',
          '--service-account-signing-key-file',
          file('sa.key'),
          '--service-account-key-file',
          file('sa.pub'),
          '--service-cluster-ip-range',
          '10.96.0.0/24',
          '--token-auth-file',
          file('tokens'),
          '--authorization-mode',
          'RBAC,Node',
          '--feature-gates',
          'IPv6DualStack=true', // before 1.21 it is off by default, and a node keeps one pod CIDR
          '--disable-admission-plugins',
          'ServiceAccount',
          '--shutdown-delay-duration',
          '0s',
          '--audit-policy-file',
          file('audit.json'),
          '--audit-log-path',
          file('audit.log'),
        ],
        { stdio: ['ignore', 'ignore', 'pipe'] },
      )
      const lines: string[] = []
      child.stderr?.setEncoding('utf8').on('data', (text: string) => void lines.push(text))
      // The server may need minutes on a busy machine. This waits while its process runs; the test's own limit applies.
      for (;;) {
        if (child.exitCode !== null || child.signalCode !== null)
          throw new Error(`kube-apiserver ended: ${lines.join('').slice(-2000)}`)
        // The server reports ready before it has created its first namespace.
        const answers = await Promise.all(
          ['/readyz', '/api/v1/namespaces/default'].map((path) => admin.call('GET', path).catch(() => ({ status: 0 }))),
        )
        if (answers.every(({ status }) => status === 200)) return
        await delay(200)
      }
    },
    async kill() {
      child.kill('SIGKILL')
      await ended(child)
    },
    asked: () =>
      readFileSync(file('audit.log'), 'utf8')
        .split('\n')
        .filter((line) => line !== '')
        .map((line) => {
          const { verb, objectRef, annotations } = JSON.parse(line) as {
            verb: string
            objectRef: { resource: string; subresource?: string }
            annotations: Record<string, string>
          }
          const part = objectRef.subresource === undefined ? '' : `/${objectRef.subresource}`
          const isAllowed = annotations['authorization.k8s.io/decision'] === 'allow'
          return { what: `${verb} ${objectRef.resource}${part}`, isAllowed }
        }),
    async close() {
      await api.kill()
      await etcd.close()
      rmSync(folder, { recursive: true, force: true })
    },
  }
  await api.start()
  return api
}

/** Gives weftd's service account the rights of the manifest, and those in `more`. */
export async function allow({ admin }: KubeApi, more: readonly KubeObject[] = []): Promise<void> {
  const objects = manifestObjects().filter(({ kind }) => /^(Cluster)?Role(Binding)?$/.test(kind))
  for (const object of [...objects, ...more]) {
    const { status, body } = await admin.create(object)
    if (status !== 201) throw new Error(`${object.kind}: ${status} ${JSON.stringify(body)}`)
  }
}
