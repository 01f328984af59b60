// Promises of calls whose failure is never an unhandled rejection: if the caller does not await one, its error is
// reported instead.

class Answer<T> extends Promise<T> {
  _heard?: boolean;

  override then<A = T, B = never>(
    done?: ((value: T) => A | PromiseLike<A>) | null, failed?: ((reason: any) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    this._heard = true;
    return super.then(done, failed);
  }
}

/** Returns `promise`; its error goes to `report` if no caller listens by the time it fails. */
export function told<T>(promise: Promise<T>, report: (error: unknown) => void): Promise<T> {
  const answer = new Answer<T>((resolve) => resolve(promise));
  Promise.prototype.then.call(answer, undefined, (error) => answer._heard || report(error));
  return answer;
}
