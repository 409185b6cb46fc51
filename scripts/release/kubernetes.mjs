// kubernetes.mjs - the manifest and the chart for Kubernetes with the image that was made beside them, named by its digest.

import { execFileSync } from 'node:child_process'
import { cpSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { gzip, tarOf } from './archive.mjs'

/** Throws where the text is not there as often as it was thought to be. */
function replaced(text, from, to, times) {
  const parts = text.split(from)
  if (parts.length !== times + 1) throw new Error(`${from} is there ${parts.length - 1} times in place of ${times}`)
  return parts.join(to)
}

/**
 * Writes weft.yaml's text to `manifest` and the chart to `chart`. The digest is part of the tag, so that whoever takes another tag
 * takes another image.
 * @param {{ root: string, work: string, version: string, image: string, digest: string, manifest: string, chart: string }} from
 */
export function buildKubernetes({ root, work, version, image, digest, manifest, chart }) {
  const source = readFileSync(join(root, 'deploy/kubernetes/weft.yaml'), 'utf8')
  const whole = `${image}:${version}@${digest}`
  writeFileSync(manifest, replaced(source, `image: weft:${version}`, `image: ${whole}`, 2))
  // Helm wants a folder of the chart's own name.
  const folder = join(work, 'chart/flannel')
  rmSync(folder, { recursive: true, force: true })
  cpSync(join(root, 'deploy/charts/weft'), folder, { recursive: true })
  // Whatever the umask was when the clone was made.
  execFileSync('chmod', ['-R', 'u+rwX,go=u-w', folder])
  const values = join(folder, 'values.yaml')
  const own = `    repository: weft\n    tag: ${version}\n`
  const named = `    repository: ${image}\n    tag: ${version}@${digest}\n`
  writeFileSync(values, replaced(readFileSync(values, 'utf8'), own, named, 1))
  writeFileSync(chart, gzip(tarOf(join(work, 'chart'), 'flannel')))
}
