// manual.ts - the lines that docs/kubernetes.md gives an operator for a shell, for a test to follow them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../lab/lab.ts'

/** The blocks of such lines in the sections that begin with these headings, in their order there. */
export function manualLines(...headings: readonly string[]): readonly string[] {
  const sections = readFileSync(join(packageRoot, 'docs/kubernetes.md'), 'utf8').split(/^(?=## )/m)
  return headings.flatMap((heading) => {
    const section = sections.find((each) => each.startsWith(`${heading}\n`))
    if (section === undefined) throw new Error(`docs/kubernetes.md has no section ${heading}`)
    return [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, text = '']) => text)
  })
}
