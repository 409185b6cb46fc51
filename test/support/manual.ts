// manual.ts - the shell commands that docs/kubernetes.md gives to an operator, for a test that follows them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../lab/lab.ts'

/** Returns the blocks of commands in the sections whose headings start with these words, in the order of the document. */
export function manualLines(...headings: readonly string[]): readonly string[] {
  const sections = readFileSync(join(packageRoot, 'docs/kubernetes.md'), 'utf8').split(/^(?=## )/m)
  return headings.flatMap((heading) => {
    const section = sections.find((each) => each.startsWith(`${heading}\n`))
    if (section === undefined) throw new Error(`docs/kubernetes.md has no section ${heading}`)
    return [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, text = '']) => text)
  })
}
