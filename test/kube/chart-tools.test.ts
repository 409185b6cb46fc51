// chart-tools.test.ts - weft's manifest and chart under the tools of others: flannel's own tests of its chart (helm-unittest), and the
// schemas of several versions of Kubernetes (kubeconform).

import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, it } from 'vitest'
import { execute, output } from '../../lab/command.ts'
import { packageRoot } from '../../lab/lab.ts'
import { CHART_VARIATIONS } from '../support/chart-variations.ts'
import { CHART_TOOLS, HELM, needs } from '../support/needs.ts'

const lacks = needs(HELM, CHART_TOOLS)
const tools = process.env['WEFT_CHART_TOOLS'] ?? ''
const chart = join(packageRoot, 'deploy/charts/weft')
const deployed = (name: string): string => readFileSync(join(packageRoot, 'deploy', name), 'utf8')

let folder: string
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'weft-chart-'))
})
afterEach(() => rmSync(folder, { recursive: true }))

/** The tests of flannel's chart that weft's chart does not pass, with what weft's chart has instead, and the reason. */
const DIFFERENCES: Readonly<Record<string, string>> = {
  'should have the correct args':
    'weft’s chart gives the arguments in `args`, as weft’s and flannel’s manifests do; flannel’s chart gives them in `command`',
  'should not render healthz settings when disabled': 'as above: the arguments are in `args`',
  'should render the healthz port and probes by default':
    'a declared port would be a port of the host, so that a new pod could not start beside the old one; the liveness probe uses /livez, ' +
    'because /healthz also fails for reasons that a restart does not repair',
}

describe('flannel’s own tests of its chart', () => {
  it('pass with weft’s chart, except those that the table explains', async () => {
    const copy = join(folder, 'weft')
    cpSync(chart, copy, { recursive: true })
    cpSync(join(tools, 'flannel-chart/tests'), join(copy, 'tests'), { recursive: true })
    const { stdout } = await execute([join(tools, 'helm-unittest'), copy])
    const failed = [...stdout.matchAll(/^\t- (.+)$/gm)].map(([, name]) => name!)
    expect(failed.toSorted(), stdout).toEqual(Object.keys(DIFFERENCES).toSorted())
    expect(stdout).toMatch(/^Tests: +3 failed, 7 passed, 10 total$/m)
  })

  it('pass with flannel’s chart, so that the comparison means something', async () => {
    const { code, stdout } = await execute([join(tools, 'helm-unittest'), join(tools, 'flannel-chart')])
    expect(code, stdout).toBe(0)
  })
})

const versions =
  lacks === undefined ? readdirSync(tools).filter((name) => /^v1\.\d+\.\d+$/.test(name)) : ['any version']

describe.each(versions)('the schemas of Kubernetes %s', (version) => {
  const minor = Number(version.split('.')[1])
  /** Checks files in the folder of the test. Returns the exit code and the output of kubeconform. */
  async function check(texts: ReadonlyMap<string, string>): Promise<string> {
    for (const [name, text] of texts) writeFileSync(join(folder, name), text)
    const schemas = join(tools, version, '{{.ResourceKind}}{{.KindSuffix}}.json')
    const files = [...texts.keys()].map((name) => join(folder, name))
    const { code, stdout, stderr } = await execute([
      join(tools, 'kubeconform'),
      '-schema-location',
      schemas,
      '-summary',
      ...files,
    ])
    return `${code} ${stdout}${stderr}`
  }
  const VALID = /^0 Summary: [1-9]\d* resources found .* - Valid: [1-9]\d*, Invalid: 0, Errors: 0, Skipped: 0\n$/

  it('accept every object of the manifests', async () => {
    const names = ['kubernetes/weft.yaml', 'prometheus/podmonitor.yml', 'prometheus/prometheusrule.yml']
    expect(await check(new Map(names.map((name, index) => [`${index}.yaml`, deployed(name)])))).toMatch(VALID)
  })

  it('accept the chart with each variation of its values', async () => {
    const variations = CHART_VARIATIONS.filter(({ since = 0 }) => since <= minor)
    const texts = new Map<string, string>()
    for (const { name, values } of variations) {
      const file = join(folder, 'values.json')
      writeFileSync(file, JSON.stringify(values))
      const kubernetes = ['--kube-version', version]
      const words = ['template', 'flannel', chart, '--values', file, ...kubernetes]
      texts.set(`${name.replaceAll(' ', '-')}.yaml`, await output([process.env['WEFT_HELM']!, ...words]))
    }
    expect(await check(texts)).toMatch(VALID)
  })

  it('refuse an unknown field and a wrong type', async () => {
    for (const [from, to] of [
      ['hostNetwork: true', 'hostNetwerk: true'],
      ['minReadySeconds: 10', 'minReadySeconds: ten'],
    ] as const)
      expect(await check(new Map([['a.yaml', deployed('kubernetes/weft.yaml').replace(from, to)]]))).toMatch(
        /^1 .*DaemonSet kube-flannel-ds is invalid/,
      )
  })
})
