// kubernetes.mjs - writes the Kubernetes manifest and the Helm chart of a release. Both refer to the container image of
// the release by its digest, and select the nodes on whose architectures the image runs.

import { execFileSync } from 'node:child_process'
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzip, tarOf } from './archive.mjs'

/** Replaces a text in a file's content. Throws if the text does not occur exactly `times` times. */
function replaced(text, from, to, times) {
  const parts = text.split(from)
  if (parts.length !== times + 1) throw new Error(`${from} occurs ${parts.length - 1} times instead of ${times}`)
  return parts.join(to)
}

/**
 * Writes the manifest weft.yaml to the file `manifest`, and the packed Helm chart to the file `chart`. The chart's
 * setting for the tag includes the digest, so that a user who sets another tag does not keep the digest of this
 * release.
 * @param {{ root: string, work: string, version: string, image: string, digest: string, architectures: readonly string[], manifest: string,
 *   chart: string }} from `architectures` are Kubernetes' names of the architectures that the image has.
 */
export function buildKubernetes({ root, work, version, image, digest, architectures, manifest, chart }) {
  const source = readFileSync(join(root, 'deploy/kubernetes/weft.yaml'), 'utf8')
  const whole = `${image}:${version}@${digest}`
  const [os, arch] = ['os', 'arch'].map((name) => `- { key: kubernetes.io/${name}, operator: In, values: `)
  const onLinux = `${os}[linux] }\n`
  const onReleased = `${onLinux}${' '.repeat(18)}${arch}[${architectures.join(', ')}] }\n`
  writeFileSync(
    manifest,
    replaced(replaced(source, `image: weft:${version}`, `image: ${whole}`, 2), onLinux, onReleased, 1),
  )
  // Helm requires that the folder in the archive has the name of the chart.
  const folder = join(work, 'chart/flannel')
  rmSync(folder, { recursive: true, force: true })
  cpSync(join(root, 'deploy/charts/weft'), folder, { recursive: true })
  // Set the file modes, because the chart's archive must not depend on the umask of the user who cloned the repository.
  execFileSync('chmod', ['-R', 'u+rwX,go=u-w', folder])
  const values = join(folder, 'values.yaml')
  const own = `    repository: weft\n    tag: ${version}\n`
  const named = `    repository: ${image}\n    tag: ${version}@${digest}\n`
  writeFileSync(values, replaced(readFileSync(values, 'utf8'), own, named, 1))
  const template = join(folder, 'templates/_helpers.tpl')
  const list = architectures.map((name) => `"${name}"`).join(' ')
  const released = `(dict "key" "kubernetes.io/arch" "operator" "In" "values" (list ${list}))`
  writeFileSync(template, replaced(readFileSync(template, 'utf8'), '(list $linux)', `(list $linux ${released})`, 1))
  writeFileSync(chart, gzip(tarOf(join(work, 'chart'), 'flannel')))
}
