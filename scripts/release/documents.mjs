// documents.mjs - the documents that the Debian and the RPM package bring, at the paths by which messages and pages name them.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** Where they are in a package: `docs/doctor.md` of a message is below it. */
export const FOLDER = 'usr/share/doc/weft'
const TOP = ['README.md', 'ARCHITECTURE.md', 'SECURITY.md']

/** The texts by their paths in the package. Pictures are left out, as in the npm package.
 * @param {string} root
 * @returns {Record<string, string>} */
export function documents(root) {
  const below = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.md'),
  )
  const names = [...TOP, ...below.map((name) => join('docs', name))].toSorted((a, b) => (a < b ? -1 : 1))
  return Object.fromEntries(names.map((name) => [join(FOLDER, name), readFileSync(join(root, name), 'utf8')]))
}

/** True for a place that somebody else can open: that of publisher.json is none until it is filled in.
 * @param {string} url */
export const isPublic = (url) => new URL(url).hostname !== 'localhost'
