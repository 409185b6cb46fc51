// materials.mjs - lists the software components inside each file of a release, in the format of CycloneDX 1.6
// (cyclonedx.org/docs/1.6/json).

import { execFileSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { NODE_VERSION, ZIG_VERSION } from './architectures.mjs'

/**
 * Returns the license field of a component in CycloneDX. A single SPDX license is an `id`. Several licenses, or a
 * license with an exception, are an `expression`.
 */
const licencesOf = (license) =>
  /^[\w.+-]+$/.test(license) ? [{ license: { id: license } }] : [{ expression: license }]

export const library = ({ name, version, license }) => ({
  type: 'library',
  name,
  version,
  licenses: licencesOf(license),
  purl: `pkg:npm/${name.replace('@', '%40')}@${version}`,
})

/** Returns the components of an executable that do not come from npm, such as Node.js. */
export const runtime = () => [
  { type: 'application', name: 'node', version: NODE_VERSION, purl: `pkg:generic/node@${NODE_VERSION}` },
  ...compiled(),
]

export const compiled = () => [
  {
    type: 'library',
    name: 'libstdc++',
    version: execFileSync('g++', ['-dumpfullversion'], { encoding: 'utf8' }).trim(),
    description: 'linked into the addon',
  },
]

/** Returns the C++ library in the addons for musl. zig's version determines the library's version. */
export const compiledForMusl = () => [
  {
    type: 'library',
    name: 'libc++',
    version: `zig ${ZIG_VERSION}`,
    licenses: licencesOf('Apache-2.0 WITH LLVM-exception'),
    description: 'linked into the addons for musl',
  },
]

/** Returns one component for each Debian package that var/lib/dpkg/status.d in the image folder `folder` lists. */
export const debianPackages = (folder) =>
  readdirSync(join(folder, 'var/lib/dpkg/status.d'))
    .toSorted()
    .map((file) => {
      const text = readFileSync(join(folder, 'var/lib/dpkg/status.d', file), 'utf8')
      const field = (name) => new RegExp(`^${name}: (.*)$`, 'm').exec(text)?.[1] ?? ''
      const [name, version] = [field('Package'), field('Version')]
      const purl = `pkg:deb/debian/${name}@${encodeURIComponent(version)}?arch=${field('Architecture')}&distro=debian-13`
      return { type: 'library', name, version, purl }
    })
