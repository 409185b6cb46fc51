// manual.ts - reads the shell commands of a page of docs/, so that a test can run them.

import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { packageRoot } from '../../lab/lab.ts'

/** Returns the blocks of shell commands in the sections of a page that have these headings, in their order there. */
export function manualLines(page: string, ...headings: readonly string[]): readonly string[] {
  const sections = readFileSync(join(packageRoot, page), 'utf8').split(/^(?=## )/m)
  return headings.flatMap((heading) => {
    const section = sections.find((each) => each.startsWith(`${heading}\n`))
    if (section === undefined) throw new Error(`${page} has no section ${heading}`)
    return [...section.matchAll(/^```sh\n(.*?)^```$/gms)].map(([, text = '']) => text)
  })
}
