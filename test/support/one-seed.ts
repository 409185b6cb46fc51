// one-seed.ts - properties draw the same cases each time, so that whether a mutant lives is no matter of luck.

import fc from 'fast-check'

fc.configureGlobal({ seed: 1 })
