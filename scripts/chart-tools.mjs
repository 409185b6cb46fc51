// chart-tools.mjs - gets the programs and schemas with which `npm run test:kube` checks the manifests and the chart,
// and prints the path of a folder with them: helm-unittest, kubeconform, flannel's chart, and the schemas of the
// objects in three versions of Kubernetes.
//
// All of them come from Go modules, which are fetched and built once. The folder is in ~/.cache/weft or
// $XDG_CACHE_HOME/weft.

import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { homedir } from 'node:os'
import { isAbsolute, join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { parse } from 'yaml'
import { build, cached, downloadOf, NEWEST_KUBERNETES } from './cluster-programs.mjs'
import { FLANNEL_VERSION, MODULE as FLANNEL } from './flanneld.mjs'
import { undo } from './undo.mjs'

/**
 * The versions of Kubernetes against which the manifests are checked: the oldest that supports maxSurge, one from the
 * middle, and the version of `npm run test:cluster`.
 */
const KUBERNETES = ['v1.22.17', 'v1.29.6', NEWEST_KUBERNETES]
const TOOLS = [
  {
    module: 'github.com/helm-unittest/helm-unittest',
    version: 'v1.1.2',
    programs: { 'helm-unittest': 'cmd/helm-unittest' },
    seconds: 60,
  },
  {
    module: 'github.com/yannh/kubeconform',
    version: 'v0.8.0',
    programs: { kubeconform: 'cmd/kubeconform' },
    seconds: 20,
  },
]
const PROMETHEUS_OPERATOR = { module: 'github.com/prometheus-operator/prometheus-operator', version: 'v0.85.0' }

const { XDG_CACHE_HOME = '' } = process.env
const cache = join(isAbsolute(XDG_CACHE_HOME) ? XDG_CACHE_HOME : join(homedir(), '.cache'), 'weft')

/**
 * Returns a stricter copy of a JSON schema: an object may have no unknown members, and a member of the type
 * `int-or-string` may be a number or a string.
 * @param {any} schema
 * @returns {any}
 */
function strict(schema) {
  if (Array.isArray(schema)) return schema.map(strict)
  if (schema === null || typeof schema !== 'object') return schema
  const { format, ...rest } = schema
  if (format === 'int-or-string' || schema['x-kubernetes-int-or-string'] === true)
    return { anyOf: [{ type: 'string' }, { type: 'number' }] }
  const isOpen = rest.additionalProperties !== undefined || rest['x-kubernetes-preserve-unknown-fields'] === true
  // An object may have a member named `properties` or `format`, which is not the schema keyword of that name. So call
  // strict() for the schema of each member, and not for the whole list of members.
  const properties =
    rest.properties && Object.fromEntries(Object.entries(rest.properties).map(([name, each]) => [name, strict(each)]))
  return {
    ...Object.fromEntries(
      Object.entries(rest).map(([name, each]) => [name, name === 'properties' ? each : strict(each)]),
    ),
    ...(properties ? { properties, ...(isOpen ? {} : { additionalProperties: false }) } : {}),
  }
}

/**
 * The name of the file in which kubeconform looks for a schema: `{{.ResourceKind}}{{.KindSuffix}}.json`.
 * @param {{ group: string, version: string, kind: string }} of
 */
const fileOf = ({ group, version, kind }) =>
  [kind, group.split('.')[0], version].filter(Boolean).join('-').toLowerCase() + '.json'

/**
 * Writes a schema for each kind of object in the OpenAPI document of a version of Kubernetes, and for the kinds of the Prometheus operator.
 * @param {string} folder
 * @param {string} version
 */
function writeSchemas(folder, version) {
  mkdirSync(folder)
  const { Dir } = downloadOf({ module: 'k8s.io/kubernetes', version }, cache)
  const { definitions } = JSON.parse(readFileSync(join(Dir, 'api/openapi-spec/swagger.json'), 'utf8'))
  const all = Object.fromEntries(
    Object.entries(definitions).map(([name, each]) => [
      name,
      name.endsWith('api.resource.Quantity') ? { anyOf: [{ type: 'string' }, { type: 'number' }] } : strict(each),
    ]),
  )
  writeFileSync(join(folder, 'definitions.json'), JSON.stringify({ definitions: all }))
  for (const [name, each] of Object.entries(definitions))
    for (const of of each['x-kubernetes-group-version-kind'] ?? [])
      writeFileSync(join(folder, fileOf(of)), JSON.stringify({ $ref: `definitions.json#/definitions/${name}` }))
  const operator = join(downloadOf(PROMETHEUS_OPERATOR, cache).Dir, 'example/prometheus-operator-crd')
  for (const file of readdirSync(operator)) {
    const { spec } = parse(readFileSync(join(operator, file), 'utf8'))
    const { group, names, versions } = spec
    for (const { name, schema } of versions) {
      const found = strict(schema.openAPIV3Schema)
      // The resource definition does not describe `metadata`, because all objects of Kubernetes have the same metadata.
      found.properties.metadata = { type: 'object' }
      writeFileSync(join(folder, fileOf({ group, version: name, kind: names.kind })), JSON.stringify(found))
    }
  }
}

async function main() {
  const id = [...TOOLS, PROMETHEUS_OPERATOR].map(({ version }) => version)
  const folder = join(cache, `chart-tools-${[...KUBERNETES, ...id, FLANNEL_VERSION].join('-')}`)
  if (!existsSync(folder)) {
    mkdirSync(cache, { recursive: true })
    const work = mkdtempSync(join(cache, 'chart-tools-'))
    const remove = undo(() => rmSync(work, { recursive: true, force: true }))
    for (const set of TOOLS)
      for (const name of Object.keys(set.programs)) {
        if (!existsSync(cached(name, set))) {
          process.stderr.write(`${name} is built from the Go module ${set.module} ${set.version}\n`)
          await build(set, [name])
        }
        cpSync(cached(name, set), join(work, name))
      }
    const { Dir } = downloadOf({ module: FLANNEL, version: FLANNEL_VERSION }, cache)
    cpSync(join(Dir, 'chart/kube-flannel'), join(work, 'flannel-chart'), { recursive: true })
    for (const version of KUBERNETES) writeSchemas(join(work, version), version)
    renameSync(work, folder)
    remove()
  }
  process.stdout.write(`${folder}\n`)
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? '').href) {
  try {
    await main()
  } catch (error) {
    process.stderr.write(`the tools for the chart cannot be made: ${error.message}; the build needs Go 1.26 or later\n`)
    process.exitCode = 1
  }
}
