// cluster-image.mjs - builds weft's container image for this machine from the working tree, for `npm run test:cluster`, and prints the path
// of its archive.
//
// The image has the files and layers of a release's image. It differs from a release in the addon, which is the one that `npm run setup`
// compiled. To test a released image, set WEFT_CLUSTER_IMAGE to release/weft-image-VERSION.tar; then this script does not run.

import { mkdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { ARCHITECTURES } from './release/architectures.mjs'
import { bundle } from './release/bundle.mjs'
import { buildExecutable } from './release/executable.mjs'
import { buildImage } from './release/image.mjs'

const root = dirname(dirname(fileURLToPath(import.meta.url)))
const json = (path) => JSON.parse(readFileSync(join(root, path), 'utf8'))

try {
  const architecture = ARCHITECTURES.find(({ name, integrity }) => name === process.arch && integrity)
  if (architecture === undefined) throw new Error(`weft has no executable for ${process.arch}`)
  process.env.SOURCE_DATE_EPOCH ??= '0'
  const work = join(root, 'build/cluster')
  mkdirSync(work, { recursive: true })
  const { version } = json('package.json')
  const addon = join(root, 'build/Release/weft.node')
  const executable = join(work, 'weftd')
  const target = join(work, 'image.tar')
  const { code, lines } = await bundle(root)
  buildExecutable({ root, work, architecture, version, code, lines, addon, target: executable })
  const publisher = json('scripts/release/publisher.json')
  const builds = [{ architecture, executable, addon, npm: '', licences: '' }]
  buildImage({ root, work, version, publisher, builds, target })
  process.stdout.write(`${target}\n`)
} catch (error) {
  process.stderr.write(
    `weft's image cannot be built: ${error.message}; set WEFT_CLUSTER_IMAGE to the archive of an image\n`,
  )
  process.exitCode = 1
}
