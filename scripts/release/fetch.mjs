// fetch.mjs - downloads the inputs for the build of each architecture, before anything is compiled. So a release whose
// inputs cannot be downloaded fails within minutes.

import { ARCHITECTURES } from './architectures.mjs'
import { imageBase } from './image-base.mjs'
import { nodeRelease, sysroot, zig } from './inputs.mjs'

const listed = (architectures) => architectures.map(({ debian }) => debian).join(', ')

/**
 * Returns the sentence that says which architectures a release has and lacks. Returns undefined if it has all.
 * @param {readonly import('./architectures.mjs').Architecture[]} chosen
 */
export function partial(chosen) {
  const left = ARCHITECTURES.filter((each) => !chosen.includes(each))
  return left.length === 0 ? undefined : `This release is for ${listed(chosen)} only. It lacks ${listed(left)}.`
}

/**
 * Downloads Debian's packages, Node.js and zig for the architectures, unless the cache has them. Throws if something cannot
 * be downloaded, and names the option that leaves out the affected architectures.
 * @param {readonly import('./architectures.mjs').Architecture[]} chosen
 * @param {(step: string) => void} onStep Is called with the name of each step.
 */
export function fetchInputs(chosen, onStep) {
  const failed = chosen.filter((architecture) => {
    onStep(`the downloads for ${architecture.debian}`)
    try {
      imageBase(architecture)
      sysroot(architecture)
      if (architecture.integrity !== undefined) nodeRelease(architecture)
      if (architecture.musl !== undefined) zig()
    } catch (error) {
      process.stderr.write(`${architecture.debian}: ${error.message}\n`)
      return true
    }
    return false
  })
  if (failed.length === 0) return
  const rest = chosen.filter((each) => !failed.includes(each))
  throw new Error(
    `cannot download all packages of Debian, Node.js and zig for ${listed(failed)}; the lines above say what is missing. ` +
      (rest.length === 0
        ? 'Check that this machine reaches deb.debian.org, security.debian.org, the npm registry and PyPI.'
        : 'Run the release again when the mirrors have these packages, name another mirror in WEFT_DEBIAN_SOURCES ' +
          '(docs/releasing.md), or release the other architectures only: ' +
          `npm run release -- --arch ${rest.map(({ debian }) => debian).join(',')}`),
  )
}
