// long-step.ts - what a long test prepares, told as it begins: in a hook, where no test can be annotated.

/** Marks it among what tests write; vitest.config.ts keeps it from the screen, and the bar shows it. */
const MARK = 'step: '

export const tellStep = (title: string): void => console.log(MARK + title)

/** The last that was told in this, if any. */
export const stepIn = (content: string): string | undefined =>
  content
    .split('\n')
    .findLast((line) => line.startsWith(MARK))
    ?.slice(MARK.length)

/** True when there is one, and nothing else. */
export const isStepAlone = (content: string): boolean =>
  stepIn(content) !== undefined && content.split('\n').every((line) => line === '' || line.startsWith(MARK))
