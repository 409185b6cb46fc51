// long-step.ts - prints a step of the preparation of a long test as it starts, for hooks, in which a test cannot be annotated.

/** Marks a step in the output of tests. vitest.config.ts hides such lines, and the progress bar shows the step. */
const MARK = 'step: '

export const printStep = (title: string): void => console.log(MARK + title)

/** Returns the last step in a text, or undefined. */
export const stepIn = (content: string): string | undefined =>
  content
    .split('\n')
    .findLast((line) => line.startsWith(MARK))
    ?.slice(MARK.length)

/** True if the text is exactly one step. */
export const isStepAlone = (content: string): boolean =>
  stepIn(content) !== undefined && content.split('\n').every((line) => line === '' || line.startsWith(MARK))
