// longest-first.ts - the order in which the files of a project start: the longest first, by the durations of
// test/selection.json, so that no long file runs alone at the end. Without them vitest knows only the sizes of the files
// on a fresh machine.

import { relative } from 'node:path'
import { BaseSequencer, type TestSpecification } from 'vitest/node'
import { SELECTION } from './selection.ts'

/** The duration of each test file in seconds. */
const seconds = new Map(SELECTION.map((entry) => [`test/${entry.file}`, entry.seconds ?? 0]))

export class LongestFirst extends BaseSequencer {
  override async sort(files: TestSpecification[]): Promise<TestSpecification[]> {
    const sorted = await super.sort(files) // oxlint-disable-line unicorn/no-array-sort -- the name is vitest's
    const projects = [...new Set(sorted.map(({ project }) => project))]
    const length = ({ moduleId }: TestSpecification): number =>
      seconds.get(relative(this.ctx.config.root, moduleId)) ?? 0
    return projects.flatMap((project) =>
      sorted.filter((file) => file.project === project).toSorted((a, b) => length(b) - length(a)),
    )
  }
}
