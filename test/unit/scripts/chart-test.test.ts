// chart-test.test.ts - the program of `helm test`, with an API server and health checks that a replaced `fetch` answers.

import { spawnSync } from 'node:child_process'
import { join } from 'node:path'
import { expect, it } from 'vitest'
import { packageRoot } from '../../../lab/lab.ts'

const P = 'flannel.alpha.coreos.com'
interface Node {
  readonly name: string
  readonly podCIDRs?: readonly string[]
  readonly backend?: string
  readonly labels?: Readonly<Record<string, string>>
}
const objectOf = ({ name, podCIDRs, backend, labels = {} }: Node) => ({
  metadata: {
    name,
    labels: { 'kubernetes.io/os': 'linux', ...labels },
    annotations: backend === undefined ? {} : { [`${P}/kube-subnet-manager`]: 'true', [`${P}/backend-type`]: backend },
  },
  spec: { podCIDRs },
})

/** Runs the program. `answers` has the HTTP status for each URL that answers. */
function run(
  nodes: readonly Node[],
  answers: Readonly<Record<string, number>>,
  environment: Readonly<Record<string, string>> = {},
) {
  const stub = `
    import fs from 'node:fs'
    import { syncBuiltinESMExports } from 'node:module'
    fs.readFileSync = () => 'a token'
    syncBuiltinESMExports()
    const nodes = ${JSON.stringify(nodes.map(objectOf))}
    const answers = ${JSON.stringify(answers)}
    globalThis.fetch = async (url, { headers }) => {
      const { host, pathname, searchParams } = new URL(url)
      if (host === '[fd00:96::1]') {
        if (headers.authorization !== 'Bearer a token' || pathname !== '/api/v1/nodes') return { ok: false, status: 403 }
        const at = Number(searchParams.get('continue'))
        const left = at + 1 < nodes.length ? { continue: String(at + 1) } : {}
        return { ok: true, json: async () => ({ items: nodes.slice(at, at + 1), metadata: left }) }
      }
      if (answers[url] === undefined) throw Object.assign(new TypeError('fetch failed'), { cause: { code: 'EHOSTUNREACH' } })
      return { status: answers[url] }
    }`
  const { status, stdout, stderr } = spawnSync(
    process.execPath,
    [
      `--import=data:text/javascript,${encodeURIComponent(stub)}`,
      join(packageRoot, 'deploy/charts/weft/files/test.mjs'),
    ],
    {
      encoding: 'utf8',
      env: {
        KUBERNETES_SERVICE_HOST: 'fd00:96::1',
        KUBERNETES_SERVICE_PORT: '443',
        HEALTH_PORT: '8081',
        NODE_SELECTOR: '{}',
        HAS_IPV4: 'true',
        HAS_IPV6: 'false',
        ...environment,
      },
    },
  )
  expect(stderr).toBe('')
  return { status, lines: stdout.trim().split('\n') }
}
const at = (host: string): string => `http://${host}:8081/readyz`

it('succeeds if weftd of each node answers at the address of the device or of the bridge', () => {
  const nodes = [
    { name: 'a', podCIDRs: ['10.244.0.0/24'], backend: 'vxlan' },
    { name: 'b', podCIDRs: ['10.244.1.64/26', 'fd00:244:0:1::/64'], backend: 'host-gw' },
    { name: 'c', podCIDRs: ['10.244.2.0/24'], backend: 'host-gw' },
    { name: 'w', labels: { 'kubernetes.io/os': 'windows' } },
  ]
  const { status, lines } = run(nodes, { [at('10.244.0.0')]: 200, [at('10.244.1.65')]: 200 })
  expect(lines.toSorted()).toEqual([
    '2 ok, 0 failed, 2 skipped',
    'ok: a: 10.244.0.0/24: weftd is ready',
    'ok: b: 10.244.1.64/26: weftd is ready',
    expect.stringMatching(/^skipped: c: no answer at .*only nodes with pods have an address of the pod network$/),
    'skipped: w: not a Linux node',
  ])
  expect(status).toBe(0)
})

it('queries each family of the network', () => {
  const nodes = [{ name: 'a', podCIDRs: ['10.244.1.0/24', 'fd00:244:0:1::/64'], backend: 'vxlan' }]
  const both = { HAS_IPV6: 'true' }
  const answers = { [at('10.244.1.1')]: 200, [at('[fd00:244:0:1::1]')]: 200 }
  expect(run(nodes, answers, both)).toMatchObject({ status: 0 })
  expect(run(nodes, { [at('10.244.1.1')]: 200 }, both)).toMatchObject({ status: 1 })
  expect(run(nodes, { [at('[fd00:244:0:1::]')]: 200 }, { ...both, HAS_IPV4: 'false' })).toMatchObject({ status: 0 })
})

it.each([
  ['no address answers', { name: 'a', podCIDRs: ['10.244.1.0/24'], backend: '' }, {}, 'EHOSTUNREACH'],
  [
    'weftd is not ready',
    { name: 'a', podCIDRs: ['10.244.1.0/24'], backend: 'host-gw' },
    { [at('10.244.1.1')]: 503 },
    'weftd is not ready: http://10.244.1.1:8081/readyz answers 503',
  ],
  ['weftd has not published the node', { name: 'a', podCIDRs: ['10.244.1.0/24'] }, {}, 'no weftd has published'],
])('fails if %s', (_why, node, answers, says) => {
  const sound = { name: 'b', podCIDRs: ['10.244.2.0/24'], backend: 'vxlan' }
  const { status, lines } = run([sound, node], { [at('10.244.2.0')]: 200, ...answers })
  expect(status).toBe(1)
  expect(lines).toContainEqual(expect.stringMatching(/^failed: a: /))
  expect(lines.join('\n')).toContain(says)
  expect(lines.at(-1)).toBe('1 ok, 1 failed, 0 skipped')
})

it('skips a node that the values do not select, and fails if no node is left', () => {
  const nodes = [{ name: 'a', labels: { role: 'database' } }]
  for (const NODE_SELECTOR of ['{"role":"worker"}', 'null']) {
    const { status, lines } = run(nodes, {}, { NODE_SELECTOR })
    expect([status, lines]).toEqual([1, ['skipped: a: weft does not run on the node', '0 ok, 0 failed, 1 skipped']])
  }
})
