// documents.mjs - the documents in the Debian and the RPM package, at the paths by which messages and pages name them.

import { readdirSync, readFileSync } from 'node:fs'
import { join } from 'node:path'

/** The folder of the documents in a package. A path in a message, such as `docs/doctor.md`, is relative to it. */
const FOLDER = 'usr/share/doc/weft'
const TOP = ['README.md', 'ARCHITECTURE.md', 'SECURITY.md']

/** Returns the documents' texts by their paths in the package. Pictures are left out, as in the npm package.
 * @param {string} root
 * @returns {Record<string, string>} */
export function documents(root) {
  const below = readdirSync(join(root, 'docs'), { recursive: true, encoding: 'utf8' }).filter((name) =>
    name.endsWith('.md'),
  )
  const names = [...TOP, ...below.map((name) => join('docs', name))].toSorted((a, b) => (a < b ? -1 : 1))
  return Object.fromEntries(names.map((name) => [join(FOLDER, name), readFileSync(join(root, name), 'utf8')]))
}

/** True for a URL that other people can open; the placeholder in publisher.json is not, until the publisher replaces it.
 * @param {string} url */
export const isPublic = (url) => new URL(url).hostname !== 'localhost'
